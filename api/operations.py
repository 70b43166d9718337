"""`/v1/queue` and `/v1/workers`: what waits, what runs, where."""

from collections.abc import Sequence
from itertools import groupby

from fastapi import APIRouter

from api.dependencies import Configuration, Store
from api.schemas import QueueDepth, Queues, Worker, Workers
from fedcore.status import Status
from fedcore.store import progress, workers
from fedcore.store.progress import Depth

router = APIRouter(prefix="/v1", tags=["operations"])


@router.get("/queue", summary="What waits and what runs")
def read_queue(database: Store) -> Queues:
    """Unfinished runs, by queue."""
    with database.reading() as session:
        depths = progress.depths(session)
    return Queues(items=[_queue(name, list(group)) for name, group in groupby(depths, key=lambda depth: depth.queue)])


@router.get("/workers", summary="Who works")
def read_workers(database: Store, settings: Configuration) -> Workers:
    """The workers that have reported within three leases."""
    with database.reading() as session:
        alive = workers.alive(session, 3 * settings.lease_seconds)
    return Workers(items=[Worker.model_validate(record) for record in alive])


def _queue(name: str, depths: Sequence[Depth]) -> QueueDepth:
    runs = {depth.status: depth.runs for depth in depths}
    left = sum(depth.rounds_left for depth in depths if depth.status is not Status.PAUSED)
    return QueueDepth(
        queue=name,
        queued=runs.get(Status.QUEUED, 0),
        running=runs.get(Status.RUNNING, 0),
        paused=runs.get(Status.PAUSED, 0),
        rounds_left=left,
    )
