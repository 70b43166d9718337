"""More rounds or seeds for an experiment: what is done stays, and the rest goes on from there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from fedcore.errors import StateConflictError
from fedcore.platform.status import RunRequest, Status
from fedcore.platform.store import arms, quotas, webhook_outbox
from fedcore.platform.store.clock import database_time, sql_now
from fedcore.platform.store.experiments import runs_of, use_uploads
from fedcore.platform.store.lifecycle import (
    STATUS_AFTER_REQUEST,
    change_runs,
    lock_runs,
    refresh_status,
    refuse_imported,
)
from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import ExperimentRecord, RunRecord
from fedcore.spec import ExperimentSpec, stored_spec
from fedcore.spec.extension import check_history_unchanged, extend_spec

ENDED_BADLY = (Status.FAILED, Status.CANCELLED)


def extend(
    session: Session,
    experiment_id: str,
    *,
    rounds: int | None,
    seeds: Sequence[int],
    measure: Callable[[ExperimentSpec], Sequence[int] | None],
    key_id: str = "",
    may_use_all: bool = False,
    made_with: Mapping[str, Any] | None = None,
) -> ExperimentRecord:
    """Extend an experiment to `rounds` rounds and by the seeds of `seeds` that it lacks.

    Nothing changes if it has both.

    Finished runs continue from their last round, and so do runs that a worker holds: its next
    commit is refused. Runs that are new or get more rounds belong to the key `key_id` from now on.
    `measure` returns the memory in bytes that a run of each arm of the new specification needs;
    `may_use_all` as of a `NewExperiment`; `made_with` is added to the provenance.

    Raises ResourceNotFoundError; StateConflictError where nothing can go on, or what was done would have been
    otherwise; SpecificationError where the new specification is not valid, and what `measure`
    raises; QuotaError where more would wait than may.
    """
    lock_runs(session, experiment_id)
    refuse_imported(session, experiment_id)
    record = session.get_one(ExperimentRecord, experiment_id, populate_existing=True)
    before = stored_spec(record.spec)
    after = extend_spec(before, rounds, seeds)
    if after == before:
        return record
    check_history_unchanged(before, after, _played(session, experiment_id))
    memory_bytes = measure(after) or _memory_of_arms(session, experiment_id)
    waiting = Status.PAUSED if record.status is Status.PAUSED else Status.QUEUED
    if after.rounds > before.rounds:
        _lengthen(session, experiment_id, before.rounds, after.rounds, waiting, key_id)
    for arm, needed in enumerate(memory_bytes):
        session.execute(
            update(RunRecord).where(_of(experiment_id), RunRecord.arm == arm).values(memory_bytes=needed)
        )
    _sow(session, record, before, after, {"status": waiting, "key_id": key_id}, memory_bytes)
    points = after.arms()
    arms.replace(session, experiment_id, after, points)
    # Since it was submitted, its uploads may have been deleted, or be no longer shared with its owner.
    use_uploads(session, experiment_id, after, points, record.owner, may_use_all=may_use_all)
    _note(session, record, before, after, made_with or {})
    quotas.check_runs(session, key_id)
    return refresh_status(session, [experiment_id])[0]


def _memory_of_arms(session: Session, experiment_id: str) -> list[int]:
    """The memory that the runs of each arm need now."""
    needed = select(func.max(RunRecord.memory_bytes)).where(_of(experiment_id))
    return list(session.scalars(needed.group_by(RunRecord.arm).order_by(RunRecord.arm)))


def _played(session: Session, experiment_id: str) -> dict[int, int]:
    """The most rounds that a run of each arm has.

    Raises StateConflictError where none is left that could go on.
    """
    query = select(RunRecord.arm, func.max(RunRecord.done)).where(_of(experiment_id)).group_by(RunRecord.arm)
    hopeful = (
        select(func.count())
        .select_from(RunRecord)
        .where(_of(experiment_id), RunRecord.status.not_in(ENDED_BADLY))
    )
    if not session.scalars(hopeful).one():
        raise StateConflictError(
            f"all runs of experiment {experiment_id} have failed or were cancelled; use `retry` to continue"
            " them"
        )
    return dict(session.execute(query).all())


def _lengthen(
    session: Session, experiment_id: str, before: int, after: int, waiting: Status, key_id: str
) -> None:
    session.execute(update(RunRecord).where(_of(experiment_id)).values(rounds=after))
    again = {
        "attempts": 0,
        "error": None,
        "not_before": None,
        "queued_at": sql_now(),
        "lease_until": None,
    }
    # One that was stopped early or has diverged would have been in more rounds, too.
    whole = RunRecord.done == before, RunRecord.stop_reason.is_(None), RunRecord.diverged_round.is_(None)
    # Failed and cancelled ones, too: `retry` continues them to the new last round.
    goes_on = or_(RunRecord.status != Status.SUCCEEDED, and_(*whole))
    quotas.move_runs(session, key_id, _of(experiment_id), goes_on)
    change_runs(session, experiment_id, [Status.SUCCEEDED], *whole, status=waiting, finished_at=None, **again)
    for request in RunRequest:
        status = STATUS_AFTER_REQUEST.get(request, Status.QUEUED)
        ended = {"finished_at": sql_now()} if status is Status.CANCELLED else {}
        taken = {"status": status, "request": RunRequest.NONE, **ended, **again}
        change_runs(session, experiment_id, [Status.RUNNING], RunRecord.request == request, **taken)


def _sow(
    session: Session,
    record: ExperimentRecord,
    before: ExperimentSpec,
    after: ExperimentSpec,
    values: Mapping[str, Any],
    memory_bytes: Sequence[int],
) -> None:
    """Add runs with the seeds that are new; their ids sort after the ids of all others."""
    new = after.model_copy(update={"seeds": after.seeds[len(before.seeds) :]})
    made = runs_of(new, after.arms(), record.id, database_time(session), memory_bytes)
    if made:
        common = {"owner": record.owner, "priority": record.priority, **values}
        # Seeds of an arm are compared, so all are computed by the same versions.
        same = RunRecord.packages, RunRecord.work, RunRecord.work_kind
        known = session.execute(select(RunRecord.arm, *same).where(_of(record.id)).distinct())
        shared = {
            arm: dict(zip(("packages", "work", "work_kind"), values, strict=True)) for arm, *values in known
        }
        rows = [run | common | shared[run["arm"]] for run in made]
        session.execute(insert_into(RunRecord), rows)
        webhook_outbox.of_runs(session, [run["id"] for run in made])


def _note(
    session: Session,
    record: ExperimentRecord,
    before: ExperimentSpec,
    after: ExperimentSpec,
    made_with: Mapping[str, Any],
) -> None:
    extension = {
        "at": database_time(session).isoformat(),
        "rounds_before": before.rounds,
        "rounds": after.rounds,
        "seeds_added": list(after.seeds[len(before.seeds) :]),
        **made_with,
    }
    history = [*record.provenance.get("extensions", ()), extension]
    values = {
        "spec": after.model_dump(mode="json"),
        "provenance": record.provenance | {"extensions": history},
    }
    session.execute(update(ExperimentRecord).where(ExperimentRecord.id == record.id).values(values))


def _of(experiment_id: str) -> ColumnElement[bool]:
    return RunRecord.experiment_id == experiment_id
