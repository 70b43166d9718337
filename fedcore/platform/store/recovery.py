"""Queries of the reconciler: requeue runs whose worker is gone, and find queues in which runs wait for
idle workers.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, not_, or_, select, tuple_, update
from sqlalchemy.orm import Session

from fedcore.platform.logging import LoggedEvent
from fedcore.platform.status import ENDED, LogLevel, RunRequest, Status
from fedcore.platform.store import backoff, counters, search, telemetry, webhook_outbox
from fedcore.platform.store.clock import database_time, sql_now
from fedcore.platform.store.leases import RUNS, Conditions, Lease
from fedcore.platform.store.lifecycle import refresh_status
from fedcore.platform.store.runs import after_loss
from fedcore.platform.store.tables import RunRecord

SeenLease = tuple[str, int, datetime]
"""A lease as it was seen: run, fence and end. A renewal makes it another."""


class LeaseWatch:
    """Leases of runs and when they expire, by the monotonic clock of the process that watches them.
    Changes in place.

    Clocks are set, machines are suspended, and with SQLite the clock of a lease is that of its worker.
    So a lease that its worker goes on renewing does not expire, whatever the clocks say, and one that
    it renews no more does.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Workers renew their leases three times within `lease_s` seconds."""
        self._renewal_s, self._clock = lease_s / 2, clock
        self._deadlines: dict[SeenLease, float] | None = None

    def expired(self, session: Session) -> Sequence[SeenLease]:
        """Look at all leases, and return the leases that have expired."""
        held = select(RunRecord.id, RunRecord.fence, RunRecord.lease_until, sql_now()).where(*RUNS.leased())
        found, now = session.execute(held).all(), self._clock()
        # The first look cannot wait for a renewal: workers may have been gone for long.
        known, least_s = ({}, 0.0) if self._deadlines is None else (self._deadlines, self._renewal_s)
        self._deadlines = {}
        for run_id, fence, until, moment in found:
            assert until is not None
            left_s = max(least_s, (until - moment).total_seconds())
            lease = run_id, fence, until
            self._deadlines[lease] = known.get(lease, now + left_s)
        return [lease for lease, deadline in self._deadlines.items() if deadline <= now]


def requeue_expired(
    session: Session, leases: LeaseWatch, max_attempts: int, limit: int = 100, *, backoff_s: float = 0.0
) -> Sequence[str]:
    """Requeue runs whose lease has expired; returns their ids.

    Each goes back to its place in the queue, or to the status of a pending request, or it fails:
    when `max_attempts` claims in a row have ended without a committed round. From the second of
    them on it is not claimed again for `backoff_s`, then longer and longer.
    """
    expired = leases.expired(session)
    # In parts: databases limit the number of parameters.
    unrenewed = tuple_(RunRecord.id, RunRecord.fence, RunRecord.lease_until).in_(expired[: 10 * limit])
    losses = _lock_losses(session, [*RUNS.leased(), unrenewed], max_attempts, limit) if expired else []
    for run, status in losses:
        _requeue(session, run, status, _columns_after_loss(run, status, backoff_s), "its lease has expired")
    return _update_dependents(session, losses, "reconciler", counters.EXPIRIES)


def requeue_oom_killed(
    session: Session, worker: str, error: str, max_attempts: int, backoff_s: float
) -> Sequence[str]:
    """Requeue the runs of a worker that was killed because memory ran out, as `runs.fail` would;
    returns their ids.
    """
    losses = _lock_losses(session, [*RUNS.leased(), RunRecord.worker == worker], max_attempts)
    for run, status in losses:
        pause_s = backoff.after_error(run.attempts, backoff_s) if status is Status.QUEUED else 0.0
        values = {
            "error": error,
            "error_of_loss": False,
            "shortages": run.shortages + 1,
            "not_before": backoff.until(pause_s),
        }
        _requeue(session, run, status, values, "memory ran out")
    return _update_dependents(session, losses, worker, counters.ERRORS)


def count_out_of_memory(session: Session, run_ids: Collection[str], error: str) -> None:
    """Count that memory ran out in runs that the reconciler had requeued before this was known."""
    short = RunRecord.id.in_(run_ids), RunRecord.status != Status.SUCCEEDED
    wanted = select(RunRecord.id, RunRecord.experiment_id).where(*short).order_by(RunRecord.id)
    found = dict(session.execute(wanted.with_for_update()).all())
    unexplained = or_(RunRecord.error.is_(None), RunRecord.error_of_loss)
    reason = case((unexplained, error), else_=RunRecord.error)
    values = {"shortages": RunRecord.shortages + 1, "error": reason, "error_of_loss": False}
    session.execute(update(RunRecord).where(RunRecord.id.in_(found)).values(values))
    refresh_status(session, found.values())


def waiting_queues(session: Session, idle_memory: Mapping[str, int]) -> list[str]:
    """The queues, given with the most memory of an idle worker, in which a run waits that fits."""

    def waits(queue: str, memory_bytes: int) -> bool:
        queued = RunRecord.status == Status.QUEUED, RunRecord.queue == queue, backoff.over()
        fitting = select(RunRecord.id).where(*queued, RunRecord.memory_bytes <= memory_bytes)
        return session.scalar(fitting.limit(1)) is not None

    return [queue for queue, memory_bytes in idle_memory.items() if waits(queue, memory_bytes)]


_Loss = tuple[RunRecord, Status]
"""A run that loses its worker, and its new status."""


def _lock_losses(
    session: Session, running: Conditions, max_attempts: int, limit: int | None = None
) -> Sequence[_Loss]:
    """Lock leased runs that lose their workers."""
    # An arm that fails may end a rung, and searches are locked before runs: one that is not locked
    # now is seen to at the next look.
    failing = and_(RunRecord.until.is_not(None), RunRecord.attempts >= max_attempts)
    experiment_ids = session.scalars(
        select(RunRecord.experiment_id).where(*running, failing).distinct()
    ).all()
    sure = or_(not_(failing), RunRecord.experiment_id.in_(search.lock_all(session, experiment_ids)))
    query = select(RunRecord).where(*running, sure).order_by(RunRecord.id).limit(limit)
    runs = session.scalars(query.with_for_update(skip_locked=True)).all()
    return [(run, after_loss(run.request, run.attempts, max_attempts)) for run in runs]


def _update_dependents(session: Session, losses: Sequence[_Loss], source: str, counter: str) -> Sequence[str]:
    """Update what depends on runs that were requeued, and count them for `source`; returns their
    ids.
    """
    ids = [run.id for run, _ in losses]
    webhook_outbox.of_runs(session, ids)
    for run, status in losses:
        if run.until is not None and status is Status.FAILED:
            search.advance(session, run.experiment_id, run.arm)
    refresh_status(session, {run.experiment_id for run, _ in losses})
    if ids:
        counters.add(session, source, {counter: len(ids)})
    return ids


def _columns_after_loss(run: RunRecord, status: Status, backoff_s: float) -> dict[str, Any]:
    """Columns of a run whose worker was lost: its error and its pause."""
    values: dict[str, Any] = {}
    if run.attempts and (run.error is None or run.error_of_loss):
        values |= {"error": _loss_message(run.attempts), "error_of_loss": True}
    if status is Status.QUEUED:
        values["not_before"] = backoff.until(backoff.after_loss(run.attempts, backoff_s))
    return values


def _requeue(session: Session, run: RunRecord, status: Status, values: dict[str, Any], reason: str) -> None:
    values |= {"status": status, "request": RunRequest.NONE, "lease_until": None}
    if status in ENDED:
        values["finished_at"] = sql_now()
    RUNS.revoke(session, run.id, **values)
    # The lines of the worker itself end without a word.
    event = f"worker {run.worker} was lost after round {run.done}: {reason}; the run is {status}"
    line = LoggedEvent(database_time(session), LogLevel.WARNING, event, {"fence": run.fence})
    telemetry.append(session, Lease(run.id, run.fence, run.worker), [line], [])


def _loss_message(attempts: int) -> str:
    """Error of a run whose worker was lost `attempts` times in a row."""
    often = " was lost" if attempts == 1 else f"s were lost {attempts} times in a row"
    return (
        f"its worker{often} before a round was committed; the system ends processes that take more memory"
        " than there is"
    )
