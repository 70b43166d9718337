"""Changes users make to an experiment (cancel, pause, resume, retry), and its status, which follows
from its runs.

Order of locks, everywhere: searches by experiment, then runs by id, then experiments by id.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from fedcore.errors import ResourceNotFoundError, StateConflictError
from fedcore.platform.status import ENDED, UNSTARTED, RunRequest, Status
from fedcore.platform.store import quotas, search, webhook_outbox
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import ExperimentRecord, RunRecord

IMPORTED = "imported"
"""Key of the provenance of an imported experiment; its value says where it is from."""
STATUS_AFTER_REQUEST = {RunRequest.PAUSE: Status.PAUSED, RunRequest.CANCEL: Status.CANCELLED}
"""Status of a run after its worker has applied a request."""


@dataclass(frozen=True, slots=True)
class RunStatuses:
    """Statuses of the runs of an experiment: current ones, and those once all requests are applied."""

    experiment_id: str
    current: set[Status]
    requested: set[Status]

    @property
    def over(self) -> bool:
        """True if every run has ended, or is about to."""
        return self.requested <= ENDED

    def __str__(self) -> str:
        end = "has ended" if self.current <= ENDED else "is about to end"
        return f"experiment {self.experiment_id} {end} ({', '.join(sorted(self.requested))})"


def cancel(session: Session, experiment_id: str) -> ExperimentRecord:
    """End the runs that have not ended; running ones end at their next round boundary.

    Raises StateConflictError when all have ended otherwise.
    """
    statuses = _run_statuses(session, experiment_id)
    if statuses.over and Status.CANCELLED not in statuses.requested:
        raise StateConflictError(f"{statuses}: nothing to cancel")
    change_runs(
        session, experiment_id, (*UNSTARTED, Status.AT_RUNG), status=Status.CANCELLED, finished_at=sql_now()
    )
    _request(session, experiment_id, (RunRequest.NONE, RunRequest.PAUSE), RunRequest.CANCEL)
    return refresh_status(session, [experiment_id])[0]


def pause(session: Session, experiment_id: str) -> ExperimentRecord:
    """Stop the runs until `resume`; running ones stop at their next round boundary.

    Raises StateConflictError when all have ended, or are about to.
    """
    statuses = _run_statuses(session, experiment_id)
    if statuses.over:
        raise StateConflictError(f"{statuses}: nothing to pause")
    change_runs(session, experiment_id, (Status.QUEUED, Status.AT_RUNG), status=Status.PAUSED)
    _request(session, experiment_id, (RunRequest.NONE,), RunRequest.PAUSE)
    return refresh_status(session, [experiment_id])[0]


def resume(session: Session, experiment_id: str) -> ExperimentRecord:
    """Queue the paused runs again, and let those go on that were about to pause.

    Raises StateConflictError when all have ended, or are about to; QuotaError when the key of the runs may
    compute no more.
    """
    statuses = _run_statuses(session, experiment_id)
    if statuses.over:
        again = statuses.requested - {Status.SUCCEEDED}
        hint = "use `retry` for failed and cancelled runs" if again else "nothing to resume"
        raise StateConflictError(f"{statuses}: {hint}")
    _requeue(session, experiment_id, (Status.PAUSED,))
    _request(session, experiment_id, (RunRequest.PAUSE,), RunRequest.NONE)
    quotas.check_resume(session, experiment_id)
    return refresh_status(session, [experiment_id])[0]


def retry(session: Session, experiment_id: str) -> ExperimentRecord:
    """Queue the failed and cancelled runs again, from their last checkpoints, and let those go on
    that were about to be cancelled.

    Raises StateConflictError when all have succeeded, when the others are paused, or for an experiment
    that was imported; QuotaError when more runs would wait than their key may have.
    """
    statuses = _run_statuses(session, experiment_id)
    refuse_imported(session, experiment_id)
    again = (Status.FAILED, Status.CANCELLED)
    if statuses.requested.isdisjoint(again):
        if statuses.over:
            raise StateConflictError(f"{statuses}: nothing to retry")
        if Status.PAUSED in statuses.requested:
            raise StateConflictError(
                f"no run of experiment {experiment_id} has failed; use `resume` to continue its paused runs"
            )
    _requeue(session, experiment_id, again, finished_at=None, attempts=0, error=None)
    _request(session, experiment_id, (RunRequest.CANCEL,), RunRequest.NONE)
    quotas.check_retry(session, experiment_id)
    return refresh_status(session, [experiment_id])[0]


def refuse_imported(session: Session, experiment_id: str) -> None:
    """Raise StateConflictError where an experiment was imported: what its runs would go on from is not
    here.
    """
    provenance = session.scalars(
        select(ExperimentRecord.provenance).where(ExperimentRecord.id == experiment_id)
    ).first()
    if provenance is not None and IMPORTED in provenance:
        raise StateConflictError(
            f"experiment {experiment_id} was imported without checkpoints; submit its specification to run it"
            " here"
        )


def refresh_status(session: Session, experiment_ids: Iterable[str]) -> list[ExperimentRecord]:
    """Make the experiments' statuses follow from their runs'.

    Call it after the runs have changed, in the same transaction.
    """
    wanted = ExperimentRecord.id.in_(set(experiment_ids))
    # Of two transactions that finish runs of one experiment, the second waits here and then sees
    # the first's.
    query = select(ExperimentRecord).where(wanted).order_by(ExperimentRecord.id)
    # Not the key: who has written to a run twice in a transaction has locked that for sharing, and
    # two of them would wait for each other.
    locked = session.scalars(query.with_for_update(key_share=True)).all()
    webhook_outbox.of_experiments(
        session, [experiment.id for experiment in locked if _update_status(session, experiment)]
    )
    return list(session.scalars(select(ExperimentRecord).where(wanted).order_by(ExperimentRecord.id)))


def lock_runs(session: Session, experiment_id: str) -> Sequence[str]:
    """Lock the runs of an experiment, in order; their ids.

    Raises ResourceNotFoundError when there is no such experiment.
    """
    search.lock(session, experiment_id)
    query = select(RunRecord.id).where(RunRecord.experiment_id == experiment_id).order_by(RunRecord.id)
    ids = session.scalars(query.with_for_update()).all()
    if not ids:
        raise ResourceNotFoundError(f"there is no experiment {experiment_id!r}")
    return ids


def derive_status(counts: Mapping[Status, int], *, started: bool) -> Status:
    """Derive the status of an experiment from the number of its runs by status."""
    if counts.get(Status.RUNNING) or counts.get(Status.QUEUED) or counts.get(Status.AT_RUNG):
        return Status.RUNNING if started else Status.QUEUED
    for status in (Status.PAUSED, Status.CANCELLED, Status.FAILED):
        if counts.get(status):
            return status
    return Status.SUCCEEDED


def _update_status(session: Session, experiment: ExperimentRecord) -> bool:
    """Update the status and return True if it has changed."""
    runs = RunRecord.experiment_id == experiment.id
    by_status = select(RunRecord.status, func.count()).where(runs).group_by(RunRecord.status)
    counts = dict(session.execute(by_status).all())
    fault = func.max(RunRecord.error).filter(RunRecord.status == Status.FAILED)
    started, error = session.execute(select(func.min(RunRecord.started_at), fault).where(runs)).one()
    status = derive_status(counts, started=started is not None)
    finished = experiment.finished_at or sql_now() if status in ENDED else None
    changes: dict[str, Any] = {
        "status": status,
        "error": error,
        "started_at": started,
        "finished_at": finished,
        "updated_at": sql_now(),
    }
    same = ExperimentRecord.id == experiment.id, ExperimentRecord.status == experiment.status
    session.execute(update(ExperimentRecord).where(*same).values(changes))
    return status is not experiment.status


def _run_statuses(session: Session, experiment_id: str) -> RunStatuses:
    lock_runs(session, experiment_id)
    query = (
        select(RunRecord.status, RunRecord.request).where(RunRecord.experiment_id == experiment_id).distinct()
    )
    rows = session.execute(query).all()
    return RunStatuses(
        experiment_id,
        {status for status, _ in rows},
        {STATUS_AFTER_REQUEST.get(request, status) for status, request in rows},
    )


def change_runs(
    session: Session, experiment_id: str, old: Sequence[Status], *which: ColumnElement[bool], **values: Any
) -> None:
    """Change the locked runs of an experiment that have one of the `old` statuses, and maybe their status."""
    changed = (
        update(RunRecord)
        .where(RunRecord.experiment_id == experiment_id, RunRecord.status.in_(old), *which)
        .values(values)
    )
    webhook_outbox.of_runs(session, session.scalars(changed.returning(RunRecord.id)).all())


def _requeue(session: Session, experiment_id: str, old: Sequence[Status], **values: Any) -> None:
    """Queue runs again; runs that were held at a rung wait there on."""
    again = {"not_before": None, "queued_at": sql_now(), **values}
    change_runs(session, experiment_id, old, RunRecord.held_at.is_not(None), status=Status.AT_RUNG, **again)
    change_runs(session, experiment_id, old, status=Status.QUEUED, **again)


def _request(session: Session, experiment_id: str, old: Sequence[RunRequest], new: RunRequest) -> None:
    running = (
        RunRecord.experiment_id == experiment_id,
        RunRecord.status == Status.RUNNING,
        RunRecord.request.in_(old),
    )
    session.execute(update(RunRecord).where(*running).values(request=new))
