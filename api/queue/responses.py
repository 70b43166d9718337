"""Queues as answers."""

from collections.abc import Sequence
from itertools import groupby

from fedcore.platform.store import Session, Status, progress, workers
from fedcore.platform.store.progress import UnfinishedRuns
from fedq.schemas import QueueDepth


def queue_answers(session: Session, seen_s: float) -> list[QueueDepth]:
    """Return the runs in each queue, and how many need more memory than any worker has that
    reported within `seen_s`.
    """
    too_large = progress.oversized(session, workers.memory_limits(session, seen_s))
    groups = groupby(progress.queue_depths(session), key=lambda depth: depth.queue)
    return [_queue(name, list(depths), too_large.get(name, 0)) for name, depths in groups]


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
