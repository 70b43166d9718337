"""`/v1/queue` and `/v1/workers`: queue lengths and live workers."""

from collections.abc import Sequence
from itertools import groupby

from fastapi import APIRouter

from api.http.authentication import Reader
from api.http.dependencies import DatabaseDep, SettingsDep
from fedcore.platform.store import Session, Status, groups, progress, runs, workers
from fedcore.platform.store.groups import ActiveGroup
from fedcore.platform.store.progress import UnfinishedRuns
from fedcore.platform.store.tables import WorkerRecord
from fedq.schemas import GroupWorker, QueueDepth, Queues, Worker, WorkerGroup, Workers

MOST = 200
"""Maximum number of rows of a table."""

router = APIRouter(prefix="/v1", tags=["operations"])


@router.get("/queue", summary="Read the queues")
def read_queue(principal: Reader, database: DatabaseDep, settings: SettingsDep) -> Queues:
    """Return the number of unfinished runs of all owners, by queue, and the groups of workers that train
    a run together. A run is named to its owner and to administrators.
    """
    with database.reading() as session:
        found = groups.list_groups(session, MOST)
        return Queues(
            items=queue_answers(session, settings.seen_seconds),
            groups=[_group(group, named=principal.sees in (None, group.run.owner)) for group in found],
        )


@router.get("/workers", summary="List workers")
def read_workers(principal: Reader, database: DatabaseDep, settings: SettingsDep) -> Workers:
    """Return workers with a recent heartbeat. A run is visible to users who may read its
    experiment.
    """
    with database.reading() as session:
        alive = workers.alive(session, settings.seen_seconds)
        shown = runs.visible(session, [record.run_id for record in alive if record.run_id], principal.sees)
    return Workers(items=[_worker(record, shown) for record in alive])


def queue_answers(session: Session, seen_s: float) -> list[QueueDepth]:
    """Return the runs in each queue, and how many need more memory than any worker has that
    reported within `seen_s`.
    """
    too_large = progress.oversized(session, workers.memory_limits(session, seen_s))
    by_queue = groupby(progress.queue_depths(session), key=lambda depth: depth.queue)
    return [_queue(name, list(depths), too_large.get(name, 0)) for name, depths in by_queue]


def _group(group: ActiveGroup, *, named: bool) -> WorkerGroup:
    run, record = group.run, group.record
    leader, *members = (
        GroupWorker(worker=worker, shards=record.trained.get(worker, 0))
        for worker in (run.worker or "", *group.members)
    )
    return WorkerGroup(
        run_id=run.id if named else None,
        queue=run.queue,
        shards=record.seats + 1,
        leader=leader,
        members=members,
    )


def _queue(name: str, depths: Sequence[UnfinishedRuns], too_large: int) -> QueueDepth:
    counts = {depth.status: depth.runs for depth in depths}
    left = sum(depth.rounds_left for depth in depths if depth.status not in (Status.AT_RUNG, Status.PAUSED))
    return QueueDepth(
        queue=name,
        queued=counts.get(Status.QUEUED, 0),
        running=counts.get(Status.RUNNING, 0),
        waiting=counts.get(Status.AT_RUNG, 0),
        paused=counts.get(Status.PAUSED, 0),
        too_large=too_large,
        rounds_left=left,
    )


def _worker(record: WorkerRecord, shown: set[str]) -> Worker:
    worker = Worker.model_validate(record)
    return worker if record.run_id in shown else worker.model_copy(update={"run_id": None})
