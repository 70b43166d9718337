"""Reasons why runs wait, other than their turn: no suitable worker, or a quota."""

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import quotas, workers
from fedcore.platform.store.tables import RunRecord

GIGABYTE = 1e9


def reasons(session: Session, runs: Iterable[RunRecord], seen_s: float) -> dict[str, str]:
    """Reasons, by id, why some of these runs cannot be claimed now.

    Workers are those seen in the last `seen_s` seconds.
    """
    queued = [run for run in runs if run.status is Status.QUEUED]
    if not queued:
        return {}
    limits = workers.memory_limits(session, seen_s)
    held = quota_exhausted(session, {run.key_id for run in queued if run.key_id})
    found = {
        run.id: [
            text
            for text in (no_suitable_worker(run.queue, run.memory_bytes, limits), held.get(run.key_id))
            if text
        ]
        for run in queued
    }
    return {run_id: "; ".join(texts) for run_id, texts in found.items() if texts}


def obstacles(session: Session, queue: str, memory_bytes: int, seen_s: float) -> list[str]:
    """Reasons why runs of this queue with `memory_bytes` would wait."""
    limits = workers.memory_limits(session, seen_s)
    if queue not in limits:
        return [f"no worker currently serves the queue {queue!r}: the runs would wait for one"]
    reason = no_suitable_worker(queue, memory_bytes, limits)
    return [f"some of the runs would wait: a run {reason}"] if reason else []


def no_suitable_worker(queue: str, memory_bytes: int, limits: Mapping[str, int]) -> str | None:
    """Reason why no worker can take a run of this queue that needs `memory_bytes`, given the memory
    limit of each queue.
    """
    limit = limits.get(queue)
    if limit is None:
        return f"no worker currently serves the queue {queue!r}"
    if memory_bytes <= limit:
        return None
    needed, most = memory_bytes / GIGABYTE, limit / GIGABYTE
    return (
        f"needs about {needed:.1f} GB of memory, but workers of the queue {queue!r} have at most {most:.1f}"
        " GB: start a larger worker, or use fewer clients per round or a smaller model"
    )


def quota_exhausted(session: Session, key_ids: Collection[str]) -> dict[str, str]:
    """Reasons, by key, why runs of these keys wait: too many are running, or the compute seconds
    are used up.
    """
    limits, spent = quotas.running_limits(session, key_ids), quotas.exhausted(session, key_ids)
    running = RunRecord.key_id.in_(limits), RunRecord.status == Status.RUNNING
    counts = dict(
        session.execute(
            select(RunRecord.key_id, func.count()).where(*running).group_by(RunRecord.key_id)
        ).all()
    )
    template = "quota of its key reached: {} running runs, limit {} (max_running_runs)"
    held = {
        key_id: template.format(counts.get(key_id, 0), most)
        for key_id, most in limits.items()
        if counts.get(key_id, 0) >= most
    }
    return held | {
        id: f"quota of its key exhausted: {most:,.1f} compute seconds (max_compute_seconds)"
        for id, most in spent.items()
    }
