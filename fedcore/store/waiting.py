"""Why runs wait, where it is not just for their turn."""

from collections.abc import Collection, Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fedcore.status import Status
from fedcore.store import quotas, workers
from fedcore.store.tables import RunRecord


def reasons(session: Session, runs: Iterable[RunRecord], seen_s: float) -> dict[str, str]:
    """Why some of these runs, by id, cannot be taken up now; workers are those seen in the last `seen_s` seconds."""
    queued = [run for run in runs if run.status is Status.QUEUED]
    if not queued:
        return {}
    idle = {queue: f"no worker serves the queue {queue!r} at present" for queue in unserved(session, {run.queue for run in queued}, seen_s)}
    full = _full(session, {run.key_id for run in queued if run.key_id})
    found = {run.id: [text for text in (idle.get(run.queue), full.get(run.key_id)) if text] for run in queued}
    return {run_id: "; ".join(texts) for run_id, texts in found.items() if texts}


def unserved(session: Session, queues: Collection[str], seen_s: float) -> list[str]:
    """Those of the queues, in order, that no worker serves."""
    served = {queue for worker in workers.alive(session, seen_s) for queue in worker.queues}
    return sorted(set(queues) - served)


def _full(session: Session, key_ids: Collection[str]) -> dict[str, str]:
    """What holds the runs of keys back that have as many running as they may."""
    limits = quotas.running_limits(session, key_ids)
    running = RunRecord.key_id.in_(limits), RunRecord.status == Status.RUNNING
    counts = dict(session.execute(select(RunRecord.key_id, func.count()).where(*running).group_by(RunRecord.key_id)).all())
    told = "{} runs of its key are running, and {} may be (max_running_runs)"
    return {key_id: told.format(counts.get(key_id, 0), most) for key_id, most in limits.items() if counts.get(key_id, 0) >= most}
