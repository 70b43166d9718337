"""`/v1/queue` and `/v1/workers`: what waits, what runs, where."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from fastapi import APIRouter

from api.access.auth import Reader
from api.dependencies import Configuration, Store
from api.schemas import QueueDepth, Queues, Worker, Workers
from fedcore.status import Status
from fedcore.store import progress, runs, workers
from fedcore.store.progress import Depth
from fedcore.store.tables import WorkerRecord

router = APIRouter(prefix="/v1", tags=["operations"])


@router.get("/queue", summary="What waits and what runs")
def read_queue(_principal: Reader, database: Store, settings: Configuration) -> Queues:
    """Unfinished runs, by queue, of all owners."""
    with database.reading() as session:
        depths = progress.depths(session)
        large = progress.larger(session, workers.rooms(session, settings.seen_seconds))
    return Queues(items=queue_depths(depths, large))


def queue_depths(depths: Sequence[Depth], too_large: Mapping[str, int]) -> list[QueueDepth]:
    """What each queue holds, and how many of its runs no worker has the memory for."""
    return [_queue(name, list(group), too_large.get(name, 0)) for name, group in groupby(depths, key=lambda depth: depth.queue)]


@router.get("/workers", summary="Who works")
def read_workers(principal: Reader, database: Store, settings: Configuration) -> Workers:
    """The workers that have reported within three leases; the run is named to its owner and to administrators."""
    with database.reading() as session:
        alive = workers.alive(session, settings.seen_seconds)
        shown = runs.visible(session, [record.run_id for record in alive if record.run_id], principal.sees)
    return Workers(items=[_worker(record, shown) for record in alive])


def _worker(record: WorkerRecord, shown: set[str]) -> Worker:
    worker = Worker.model_validate(record)
    return worker if record.run_id in shown else worker.model_copy(update={"run_id": None})


def _queue(name: str, depths: Sequence[Depth], too_large: int) -> QueueDepth:
    counts = {depth.status: depth.runs for depth in depths}
    left = sum(depth.rounds_left for depth in depths if depth.status not in (Status.WAITING, Status.PAUSED))
    return QueueDepth(
        queue=name,
        queued=counts.get(Status.QUEUED, 0),
        running=counts.get(Status.RUNNING, 0),
        waiting=counts.get(Status.WAITING, 0),
        paused=counts.get(Status.PAUSED, 0),
        too_large=too_large,
        rounds_left=left,
    )
