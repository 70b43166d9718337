"""Queries of the reconciler: requeue runs whose worker is gone, and find runs that no worker was
notified about.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, case, not_, or_, select, update
from sqlalchemy.orm import Session

from fedcore.platform.status import ENDED, RunRequest, Status
from fedcore.platform.store import backoff, counters, search, webhook_outbox
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.leases import RUNS, Conditions
from fedcore.platform.store.lifecycle import refresh_status
from fedcore.platform.store.runs import after_loss
from fedcore.platform.store.tables import RunRecord


def requeue_expired(
    session: Session, max_attempts: int, limit: int = 100, *, backoff_s: float = 0.0
) -> Sequence[str]:
    """Take runs from workers that let their leases expire; returns their ids.

    Each goes back to its place in the queue, or to where a pending pause or cancel puts it, or it
    fails: when `max_attempts` claims in a row have ended without a committed round. From the second
    of them on it is not taken up again for `backoff_s`, then longer and longer.
    """
    losses = _locked(session, RUNS.expired(), max_attempts, limit)
    for run, status in losses:
        _take(session, run, status, _afterwards(run, status, backoff_s))
    return _settled(session, losses, "reconciler", counters.EXPIRIES)


def requeue_oom_killed(
    session: Session, worker: str, error: str, max_attempts: int, backoff_s: float
) -> Sequence[str]:
    """Take its runs from a worker that was ended for want of memory, as `runs.fail` would after a
    shortage; returns their ids.
    """
    losses = _locked(session, [*RUNS.leased(), RunRecord.worker == worker], max_attempts)
    for run, status in losses:
        pause_s = backoff.after_error(run.attempts, backoff_s) if status is Status.QUEUED else 0.0
        values = {
            "error": error,
            "error_of_loss": False,
            "shortages": run.shortages + 1,
            "not_before": backoff.until(pause_s),
        }
        _take(session, run, status, values)
    return _settled(session, losses, worker, counters.ERRORS)


def count_out_of_memory(session: Session, run_ids: Collection[str], error: str) -> None:
    """Count a shortage of memory of runs that the reconciler took before it was known to be the
    reason.
    """
    short = RunRecord.id.in_(run_ids), RunRecord.status != Status.SUCCEEDED
    wanted = select(RunRecord.id, RunRecord.experiment_id).where(*short).order_by(RunRecord.id)
    found = dict(session.execute(wanted.with_for_update()).all())
    unexplained = or_(RunRecord.error.is_(None), RunRecord.error_of_loss)
    reason = case((unexplained, error), else_=RunRecord.error)
    values = {"shortages": RunRecord.shortages + 1, "error": reason, "error_of_loss": False}
    session.execute(update(RunRecord).where(RunRecord.id.in_(found)).values(values))
    refresh_status(session, found.values())


def runs_to_wake(session: Session, queue: str, older_than_s: float, limit: int = 100) -> Sequence[str]:
    """Runs that wait in `queue` and that no worker was nudged for in the last `older_than_s`
    seconds, by id; stamps them as nudged now.

    Several reconcilers may call it at once: each run goes to one of them.
    """
    waits = RunRecord.status == Status.QUEUED, RunRecord.queue == queue, backoff.over()
    stale = or_(RunRecord.woken_at.is_(None), RunRecord.woken_at < sql_now(-older_than_s))
    chosen = (
        select(RunRecord.id)
        .where(*waits, stale)
        .order_by(RunRecord.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    ids = session.scalars(chosen).all()
    stamp = (
        update(RunRecord)
        .where(RunRecord.id.in_(ids), RunRecord.status == Status.QUEUED)
        .values(woken_at=sql_now())
    )
    return session.scalars(stamp.returning(RunRecord.id)).all()


class _Loss(NamedTuple):
    """A run that is to be taken from its worker, and where it goes."""

    run: RunRecord
    status: Status


def _locked(
    session: Session, running: Conditions, max_attempts: int, limit: int | None = None
) -> Sequence[_Loss]:
    """Runs to be taken from their workers."""
    # An arm that fails may end a rung, and searches are locked before runs: one that is not locked
    # now is seen to at the next look.
    failing = and_(RunRecord.until.is_not(None), RunRecord.attempts >= max_attempts)
    experiment_ids = session.scalars(
        select(RunRecord.experiment_id).where(*running, failing).distinct()
    ).all()
    sure = or_(not_(failing), RunRecord.experiment_id.in_(search.lock_all(session, experiment_ids)))
    query = select(RunRecord).where(*running, sure).order_by(RunRecord.id).limit(limit)
    runs = session.scalars(query.with_for_update(skip_locked=True)).all()
    return [_Loss(run, after_loss(run.request, run.attempts, max_attempts)) for run in runs]


def _settled(session: Session, losses: Sequence[_Loss], teller: str, what: str) -> Sequence[str]:
    """Runs were taken: what follows for others, and for the tally of `teller`; their ids."""
    ids = [run.id for run, _ in losses]
    webhook_outbox.of_runs(session, ids)
    for run, status in losses:
        if run.until is not None and status is Status.FAILED:
            search.advance(session, run.experiment_id, run.arm)
    refresh_status(session, {run.experiment_id for run, _ in losses})
    if ids:
        counters.add(session, teller, {what: len(ids)})
    return ids


def _afterwards(run: RunRecord, status: Status, backoff_s: float) -> dict[str, Any]:
    """Columns of a run whose worker was lost: its error and its pause."""
    values: dict[str, Any] = {}
    if run.attempts and (run.error is None or run.error_of_loss):
        values |= {"error": _error_message(run.attempts), "error_of_loss": True}
    if status is Status.QUEUED:
        values["not_before"] = backoff.until(backoff.after_loss(run.attempts, backoff_s))
    return values


def _take(session: Session, run: RunRecord, status: Status, values: dict[str, Any]) -> None:
    values |= {"status": status, "request": RunRequest.NONE, "lease_until": None, "woken_at": None}
    if status in ENDED:
        values["finished_at"] = sql_now()
    RUNS.revoke(session, run.id, **values)


def _error_message(attempts: int) -> str:
    """The error of a run whose worker was lost so often in a row."""
    often = " was lost" if attempts == 1 else f"s were lost {attempts} times in a row"
    return (
        f"its worker{often} before a round was committed; the system ends processes that take more memory"
        " than there is"
    )
