"""Reasons why runs wait, other than their turn: no suitable worker, or a quota."""

import json
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import quotas, workers
from fedcore.platform.store.leases import ANY_MEMORY
from fedcore.platform.store.tables import RunRecord, WorkerRecord

GIGABYTE = 1e9


def reasons(session: Session, runs: Iterable[RunRecord], seen_s: float) -> dict[str, str]:
    """Reasons, by id, why some of these runs cannot be claimed now.

    Workers count if they were seen in the last `seen_s` seconds.
    """
    queued = [run for run in runs if run.status is Status.QUEUED]
    if not queued:
        return {}
    present = workers.alive(session, seen_s)
    held = quota_exhausted(session, {run.key_id for run in queued if run.key_id})
    found = {
        run.id: (
            no_suitable_worker(run.queue, run.memory_bytes, run.packages, present),
            held.get(run.key_id),
        )
        for run in queued
    }
    return {run_id: "; ".join(filter(None, texts)) for run_id, texts in found.items() if any(texts)}


def obstacles(
    session: Session, queue: str, memory_bytes: int, needed: Iterable[str | None], seen_s: float
) -> list[str]:
    """Reasons why runs of this queue with `memory_bytes`, and one of the values of `RunRecord.packages`
    in `needed`, would wait.
    """
    present = workers.alive(session, seen_s)
    reasons = [no_suitable_worker(queue, memory_bytes, packages, present) for packages in needed]
    if not any(queue in worker.queues for worker in present):
        return [f"no worker currently serves the queue {queue!r}: the runs would wait for one"]
    subject = {reason: "a run " if reason.startswith("needs") else "" for reason in reasons if reason}
    return [f"some of the runs would wait: {prefix}{reason}" for reason, prefix in subject.items()]


def no_suitable_worker(
    queue: str, memory_bytes: int, packages: str | None, present: Sequence[WorkerRecord]
) -> str | None:
    """Reason why none of the workers `present` can take a run of this queue that needs `memory_bytes`
    and has this value of `RunRecord.packages`.
    """
    serving = [worker for worker in present if queue in worker.queues]
    if not serving:
        return f"no worker currently serves the queue {queue!r}"
    wanted = json.loads(packages or "[]")
    suitable = [worker for worker in serving if set(wanted) <= set(worker.packages)]
    if not suitable:
        return _missing(wanted, serving, queue)
    most = max(ANY_MEMORY if worker.memory_bytes is None else worker.memory_bytes for worker in suitable)
    if memory_bytes <= most:
        return None
    return (
        f"needs about {memory_bytes / GIGABYTE:.1f} GB of memory, but workers of the queue {queue!r} have at"
        f" most {most / GIGABYTE:.1f} GB: start a larger worker, or use fewer clients per round or a smaller"
        " model"
    )


def _missing(wanted: Sequence[str], serving: Sequence[WorkerRecord], queue: str) -> str:
    have = {package for worker in serving for package in worker.packages}
    lacking = [package for package in wanted if package not in have]
    if not lacking:
        return f"no worker has all of {', '.join(wanted)}: install them on one worker of the queue {queue!r}"
    names = {package.rpartition(" ")[0] for package in lacking}
    others = sorted(package for package in have if package.rpartition(" ")[0] in names)
    found = f"; they have {', '.join(others)}" if others else ""
    return f"no worker has {' and '.join(lacking)}: install it on workers of the queue {queue!r}{found}"


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
