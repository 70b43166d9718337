"""Companions: runs of one experiment that a worker takes beside one that it holds, to train them together."""

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import backoff, quotas, runs, workers
from fedcore.platform.store.claim import Claim
from fedcore.platform.store.tables import RunRecord


def claim(session: Session, held: Claim, arms: Collection[int], most: int, *, lease_s: float, seen_s: float) -> list[Claim]:
    """Take waiting runs of these arms of the experiment, for `lease_s` seconds: `most` of them at most, and a fair part.

    That is what remains to a worker when all that are idle, and were seen in the last `seen_s` seconds, share what waits.
    """
    queue, key_id = session.execute(select(RunRecord.queue, RunRecord.key_id).where(RunRecord.id == held.run_id)).one()
    waiting = (
        RunRecord.experiment_id == held.experiment_id,
        RunRecord.status == Status.QUEUED,
        RunRecord.queue == queue,
        # Those that an extension has added may be another key's, with quotas of its own.
        RunRecord.key_id == key_id,
        backoff.over(),
        RunRecord.shortages == 0,
        RunRecord.arm.in_(arms),
    )
    # All are in memory at once, so there must be room for each beside the others, were it the largest of them.
    largest = session.scalar(select(func.max(RunRecord.memory_bytes)).where(*waiting)) or 1
    most = min(most, max(0, held.room - held.memory_bytes) // largest)
    count, room = _fair(session, waiting, queue, seen_s), quotas.room(session, key_id)
    fit = min(most, count) if room is None else min(most, count, room)
    chosen = select(RunRecord.id).where(*waiting).order_by(RunRecord.id).limit(fit)
    ids = session.scalars(chosen.with_for_update(skip_locked=True)).all()
    return [runs.take(session, run_id, held.worker, held.queues, lease_s, held.room) for run_id in ids]


def _fair(session: Session, waiting: Sequence[ColumnElement[bool]], queue: str, seen_s: float) -> int:
    """How many of those that wait are left to this worker beside the one it holds."""
    busy = set(session.scalars(select(RunRecord.worker).where(RunRecord.status == Status.RUNNING).distinct()))
    idle = [worker for worker in workers.alive(session, seen_s) if queue in worker.queues and worker.id not in busy]
    count = session.scalar(select(func.count()).where(*waiting)) or 0
    return -(-(count + 1) // (len(idle) + 1)) - 1
