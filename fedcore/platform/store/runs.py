"""Runs in execution: claimed under a lease, committed slice by slice, released or ended.

Every write of a worker names its claim; a worker that lost its lease is refused. A worker may claim
further runs of the same experiment, to train them as one batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, case, exists, func, or_, select, update
from sqlalchemy.orm import Session

from fedcore.errors import ResourceNotFoundError, StaleLeaseError
from fedcore.platform.logging import redact_secrets, storable_text
from fedcore.platform.status import ENDED, RunRequest, Status, WorkerDirective
from fedcore.platform.store import (
    backoff,
    counters,
    fair_share,
    quotas,
    scheduler,
    search,
    sharing,
    webhook_outbox,
    workers,
)
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.curves import append_rounds, committed_figures, judge
from fedcore.platform.store.fair_share import OwnerQueue
from fedcore.platform.store.leases import RUNS, Claim, Claimant
from fedcore.platform.store.lifecycle import STATUS_AFTER_REQUEST, refresh_status
from fedcore.platform.store.records import get_by_id
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedcore.simulation.report import RoundReport, StopReason

_CONTROL = {RunRequest.PAUSE: WorkerDirective.PAUSE, RunRequest.CANCEL: WorkerDirective.CANCEL}


def find(session: Session, run_id: str, owner: str | None = None) -> RunRecord:
    """The run with this id, if `owner` may read its experiment where one is given; raises
    ResourceNotFoundError.
    """
    record = get_by_id(session, RunRecord, run_id)
    if record is None or not sharing.may_read(session, record.experiment_id, record.owner, owner):
        raise ResourceNotFoundError(f"there is no run {run_id!r}")
    return record


def edit(session: Session, run_id: str, *, notes: str | None = None) -> RunRecord:
    """Change what is given; raises ResourceNotFoundError."""
    if notes is not None:
        session.execute(update(RunRecord).where(RunRecord.id == run_id).values(notes=notes))
    return find(session, run_id)


def ids(session: Session) -> Sequence[str]:
    """The ids of all runs, in order."""
    return session.scalars(select(RunRecord.id).order_by(RunRecord.id)).all()


def of_experiment(
    session: Session, experiment_id: str, *, after: str | None = None, limit: int | None = None
) -> Sequence[RunRecord]:
    """The runs of an experiment, by arm, then in the order of its seeds.

    None when there is no such experiment.

    At most `limit` of the runs that follow the run `after`.
    """
    query = (
        select(RunRecord).where(RunRecord.experiment_id == experiment_id).order_by(RunRecord.id).limit(limit)
    )
    return session.scalars(query.where(RunRecord.id > after) if after else query).all()


def shared_errors(session: Session, experiment_id: str, errors: Collection[str]) -> dict[str, int]:
    """Errors that several runs of an experiment have, out of `errors`, the most frequent first,
    with the number of these runs.
    """
    count = func.count()
    query = (
        select(RunRecord.error, count)
        .where(RunRecord.experiment_id == experiment_id, RunRecord.error.in_(errors))
        .group_by(RunRecord.error)
        .having(count > 1)
        .order_by(count.desc(), RunRecord.error)
    )
    return {error: number for error, number in session.execute(query).all() if error is not None}


def visible(session: Session, run_ids: Sequence[str], owner: str | None) -> set[str]:
    """The runs, out of these, that `owner` may read, or all that exist where no owner is given."""
    query = select(RunRecord.id).where(RunRecord.id.in_(run_ids))
    if owner is not None:
        shared = RunRecord.experiment_id.in_(sharing.shared_with(owner))
        query = query.where(or_(RunRecord.owner == owner, shared))
    return set(session.scalars(query))


def claim(session: Session, claimant: Claimant, lease_s: float) -> Claim | None:
    """Claim the best queued run that a worker may take, for `lease_s` seconds; None when there is none.

    Higher priority first; then in the order of its queues; then by fair share between owners; of an
    owner's experiments the one with the fewest running runs; then the run queued longest.
    """
    run_id = scheduler.next_run(session, claimant)
    return None if run_id is None else claim_next(session, run_id, claimant, lease_s)


def claim_next(session: Session, run_id: str, claimant: Claimant, lease_s: float) -> Claim:
    """Claim a queued run whose row is locked."""
    RUNS.claim(
        session,
        run_id,
        lease_s,
        claimant.worker,
        attempts=RunRecord.attempts + 1,
        not_before=None,
        started_at=func.coalesce(RunRecord.started_at, sql_now()),
    )
    counters.add(session, claimant.worker, {counters.CLAIMS: 1})
    webhook_outbox.of_runs(session, [run_id])
    run = get_by_id(session, RunRecord, run_id)
    assert run is not None
    _begin_experiment(session, run.experiment_id)
    wanted = select(ExperimentRecord.spec, ExperimentRecord.traceparent).where(
        ExperimentRecord.id == run.experiment_id
    )
    spec, traceparent = session.execute(wanted).one()
    return Claim.of(run, spec, claimant, traceparent)


def commit_slice(
    session: Session,
    claim: Claim,
    reports: Sequence[RoundReport],
    *,
    checkpoint: str,
    lease_s: float,
    provenance: Mapping[str, Any],
    turn_over: bool = False,
) -> WorkerDirective:
    """Store the rounds that follow `claim.done` and the key of their checkpoint, and renew the
    lease for `lease_s` seconds.

    `provenance` describes the execution, for those who take the run over. Returns what comes next;
    after CONTINUE go on with `claim.at(done)`. `turn_over` lets runs of the same priority come
    first. A run whose key has no compute seconds left is handed back. Raises StaleLeaseError when
    the run is no longer this claim's.
    """
    played = [report.round for report in reports]
    done = claim.done + len(played)
    assert played == list(range(claim.done + 1, done + 1)), (
        f"rounds {played} do not follow round {claim.done}"
    )
    seconds = sum(report.seconds for report in reports)
    values = {
        "done": done,
        "checkpoint": checkpoint,
        "provenance": dict(provenance),
        "attempts": 0,
        "error": None,
        "seconds": RunRecord.seconds + seconds,
        "figures": committed_figures(session, claim.run_id, reports),
    }
    columns = RunRecord.request, RunRecord.priority, RunRecord.queue, RunRecord.owner, RunRecord.key_id
    row = RUNS.renew(session, claim.lease, lease_s, *columns, where=_intact(claim), **values)
    request, priority, queue, owner, key_id = _valid(row, claim)
    append_rounds(session, claim.run_id, reports)
    counters.add_slice(session, claim.worker, len(played), seconds)
    fair_share.add_seconds(session, claim.worker, OwnerQueue(queue, owner), seconds)
    if request is not RunRequest.NONE:
        return _CONTROL[request]
    if key_id and quotas.exhausted(session, [key_id]):
        return WorkerDirective.YIELD
    first = scheduler.should_preempt(session, claim.claimant, priority, turn_over=turn_over)
    return WorkerDirective.YIELD if first else WorkerDirective.CONTINUE


def committed(session: Session, claim: Claim, done: int) -> bool:
    """True if this claim's commit up to round `done` went through: to be asked when the connection
    broke during it.
    """
    return session.scalar(select(exists().where(*RUNS.held(claim.lease), RunRecord.done == done))) or False


def renew(session: Session, claim: Claim, lease_s: float) -> WorkerDirective:
    """Extend the lease to `lease_s` seconds from now; returns the request of the user. Raises
    StaleLeaseError.
    """
    (request,) = _valid(RUNS.renew(session, claim.lease, lease_s, RunRecord.request), claim)
    return _CONTROL.get(request, WorkerDirective.CONTINUE)


def should_interrupt(session: Session, claims: Sequence[Claim]) -> bool:
    """True if the slice of a worker that holds these claims should end early: a pause or cancel was
    requested, or a run that comes first is queued.
    """
    wanted = select(RunRecord.request, RunRecord.priority).where(
        RunRecord.id.in_([claim.run_id for claim in claims])
    )
    found = session.execute(wanted).all()
    if not found or any(request is not RunRequest.NONE for request, _ in found):
        return True
    least = min(priority for _, priority in found)
    return scheduler.should_preempt(session, claims[0].claimant, least, turn_over=False)


def release(session: Session, claim: Claim) -> None:
    """Release the run between two rounds: back to the queue, or to the status of a pending request.
    Raises StaleLeaseError.
    """
    kept = case((RunRecord.attempts > 0, RunRecord.attempts - 1), else_=0)
    (request,) = _valid(RUNS.lock(session, claim.lease, RunRecord.request), claim)
    _release(
        session,
        claim,
        STATUS_AFTER_REQUEST.get(request, Status.QUEUED),
        attempts=kept,
        queued_at=sql_now(),
    )


def pause_at_rung(session: Session, claim: Claim, *, model: str, provenance: Mapping[str, Any]) -> None:
    """Pause a run at round `claim.until`, a rung; `model` is where the model of that round is
    stored.

    It stays at the rung, or follows a pending request, until its arm is promoted or stopped. This
    call may bring that about, for other runs too. Raises StaleLeaseError.
    """
    search.lock(session, claim.experiment_id)
    row = RUNS.lock(session, claim.lease, RunRecord.request, RunRecord.figures, where=_intact(claim))
    request, figures = _valid(row, claim)
    # If its arm is not promoted, this is its end.
    made = {"model": model, **judge(figures, provenance, None)}
    _release(
        session,
        claim,
        STATUS_AFTER_REQUEST.get(request, Status.AT_RUNG),
        **made,
        held_at=sql_now(),
        attempts=0,
        error=None,
    )


def finish(
    session: Session,
    claim: Claim,
    *,
    model: str | None,
    provenance: Mapping[str, Any],
    diverged_round: int | None = None,
    stop_reason: StopReason | None = None,
) -> None:
    """End a run after its last round; `model` is where the final model is stored.

    Raises StaleLeaseError.
    """
    search.lock(session, claim.experiment_id)
    (figures,) = _valid(RUNS.lock(session, claim.lease, RunRecord.figures, where=_intact(claim)), claim)
    ending = {
        "diverged_round": diverged_round,
        "stop_reason": stop_reason,
        **judge(figures, provenance, diverged_round),
    }
    _release(session, claim, Status.SUCCEEDED, error=None, model=model, **ending)


def fail(
    session: Session,
    claim: Claim,
    error: str,
    max_attempts: int,
    backoff_s: float = 0.0,
    *,
    out_of_memory: bool = False,
) -> Status:
    """End a claim by an error: the run is queued again, or fails when this was the last of
    `max_attempts` without a committed round.

    It is not claimed again for `backoff_s`, or longer the more often this has happened; if memory
    ran out, it is then executed with less. Returns its new status. Raises StaleLeaseError.
    """
    search.lock(session, claim.experiment_id)
    row = RUNS.lock(session, claim.lease, RunRecord.request, RunRecord.attempts)
    request, attempts = _valid(row, claim)
    status = after_loss(request, attempts, max_attempts)
    pause_s = backoff.after_error(attempts, backoff_s) if status is Status.QUEUED else 0.0
    less = {"shortages": RunRecord.shortages + int(out_of_memory)}
    _release(
        session,
        claim,
        status,
        # Libraries put anything into the texts of their errors.
        error=redact_secrets(storable_text(error)),
        error_of_loss=False,
        not_before=backoff.until(pause_s),
        **less,
    )
    counters.add(session, claim.worker, {counters.ERRORS: 1})
    return status


def after_loss(request: RunRequest, attempts: int, max_attempts: int) -> Status:
    """Status of a run after its claim ended badly."""
    if request is RunRequest.NONE and attempts >= max_attempts:
        return Status.FAILED
    return STATUS_AFTER_REQUEST.get(request, Status.QUEUED)


def _intact(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    """Condition: everything that the claim has committed is there, so the database was not set
    back.
    """
    return (RunRecord.done == claim.done,)


def _valid(row: Row[Any] | None, claim: Claim) -> Any:
    """Raise StaleLeaseError where a statement found no row with this claim."""
    if row is None:
        raise StaleLeaseError(
            f"run {claim.run_id} is no longer held by {claim.worker} (claim {claim.fence}, round"
            f" {claim.done})"
        )
    return row


def _release(session: Session, claim: Claim, status: Status, **values: Any) -> None:
    """Leave RUNNING for `status`; the lease and any request end with it."""
    ended = {"finished_at": sql_now()} if status in ENDED else {}
    values |= {"status": status, "request": RunRequest.NONE, "lease_until": None, **ended}
    _valid(RUNS.update(session, claim.lease, **values), claim)
    webhook_outbox.of_runs(session, [claim.run_id])
    if status in search.SETTLED or "held_at" in values:
        search.advance(session, claim.experiment_id, claim.arm)
    if status is not Status.QUEUED:
        refresh_status(session, [claim.experiment_id])


def _begin_experiment(session: Session, experiment_id: str) -> None:
    # Only the first claim of an experiment writes here, so claims do not wait for one another.
    waiting = ExperimentRecord.id == experiment_id, ExperimentRecord.status == Status.QUEUED
    begun = (
        update(ExperimentRecord)
        .where(*waiting)
        .values(status=Status.RUNNING, started_at=sql_now(), updated_at=sql_now())
    )
    webhook_outbox.of_experiments(session, session.scalars(begun.returning(ExperimentRecord.id)).all())


def claim_batch(
    session: Session, claim: Claim, arms: Collection[int], most: int, *, lease_s: float, seen_s: float
) -> list[Claim]:
    """Claim queued runs of these arms of the experiment, for `lease_s` seconds: at most `most`, and
    a fair part.

    The fair part is what remains for this worker when all idle ones, seen in the last `seen_s`
    seconds, share the queued runs.
    """
    queue, key_id = session.execute(
        select(RunRecord.queue, RunRecord.key_id).where(RunRecord.id == claim.run_id)
    ).one()
    usable = scheduler.usable_packages(session, claim.claimant.packages)
    waiting = (
        *RUNS.free(),
        RunRecord.experiment_id == claim.experiment_id,
        RunRecord.queue == queue,
        # Those that an extension has added may be another key's, with quotas of its own.
        RunRecord.key_id == key_id,
        backoff.over(),
        RunRecord.shortages == 0,
        RunRecord.arm.in_(arms),
        *scheduler.suits(RunRecord, claim.claimant.memory_bytes, usable),
    )
    # All are in memory at once, so there must be room for each beside the others, were it the
    # largest of them.
    largest = session.scalar(select(func.max(RunRecord.memory_bytes)).where(*waiting)) or 1
    most = min(most, max(0, claim.claimant.memory_bytes - claim.memory_bytes) // largest)
    count, slots = _fair(session, waiting, claim, queue, seen_s), quotas.free_slots(session, key_id)
    fit = min(most, count) if slots is None else min(most, count, slots)
    chosen = select(RunRecord.id).where(*waiting).order_by(RunRecord.id).limit(fit)
    ids = session.scalars(RUNS.lock_free(chosen)).all()
    return [claim_next(session, run_id, claim.claimant, lease_s) for run_id in ids]


def _fair(
    session: Session, waiting: Sequence[ColumnElement[bool]], claim: Claim, queue: str, seen_s: float
) -> int:
    """Number of queued runs left to this worker beside the one it holds, when idle workers that have the
    packages of that one take their parts.
    """
    busy = set(session.scalars(select(RunRecord.worker).where(RunRecord.status == Status.RUNNING).distinct()))
    idle = [
        worker
        for worker in workers.alive(session, seen_s)
        if queue in worker.queues and worker.id not in busy and {*claim.packages} <= {*worker.packages}
    ]
    count = session.scalar(select(func.count()).where(*waiting)) or 0
    return -(-(count + 1) // (len(idle) + 1)) - 1
