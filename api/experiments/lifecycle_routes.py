"""`/v1/experiments/{id}` and below: changed, cancelled, paused, resumed, retried, extended,
deleted.
"""

from collections.abc import Callable, Sequence

from api.experiments.responses import experiment_answer
from api.experiments.service import code
from api.http.audit_trail import Note, Noting
from api.http.authentication import Submitter
from api.http.dependencies import Configuration, ExperimentId, Store, Wake
from api.http.documents import Document, body_of, validate
from api.http.problems import responses
from api.http.routing import Router
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, Session, experiments, extension
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.spec import ExperimentSpec
from fedcore.spec.limits import ExperimentLimits, refuse_excess
from fedq.planning.estimates import memory_needed
from fedq.schemas import Experiment, ExperimentEdit, ExperimentExtension

router = Router(prefix="/v1/experiments", tags=["experiments"])

Change = Callable[[Session, str], ExperimentRecord]


@router.patch(
    "/{experiment_id}",
    responses=responses(400, 404, 413, 415, 422),
    openapi_extra=body_of("ExperimentEdit"),
    summary="Edit name, tags or priority",
)
def edit(
    principal: Submitter, experiment_id: ExperimentId, document: Document, database: Store, note: Note
) -> Experiment:
    """Change the given fields of an experiment.

    A new priority applies to all of its runs, including later retries.
    """
    changes = validate(ExperimentEdit, document.value)
    return _change(
        database,
        principal,
        note,
        experiment_id,
        lambda session, id: experiments.edit(
            session, id, name=changes.name, tags=changes.tags, priority=changes.priority
        ),
    )


@router.post("/{experiment_id}/cancel", responses=responses(404, 409, 422), summary="Cancel")
def cancel(principal: Submitter, experiment_id: ExperimentId, database: Store, note: Note) -> Experiment:
    """Cancel unfinished runs; runs in progress stop at their next round boundary.

    Idempotent; 409 if all runs have finished.
    """
    return _change(database, principal, note, experiment_id, experiments.cancel)


@router.post("/{experiment_id}/pause", responses=responses(404, 409, 422), summary="Pause")
def pause(principal: Submitter, experiment_id: ExperimentId, database: Store, note: Note) -> Experiment:
    """Pause until `resume`; runs in progress stop at their next round boundary.

    Idempotent; 409 if all runs are finished or stopping.
    """
    return _change(database, principal, note, experiment_id, experiments.pause)


@router.post("/{experiment_id}/resume", responses=responses(404, 409, 422), summary="Resume")
def resume(
    principal: Submitter, experiment_id: ExperimentId, database: Store, note: Note, wake: Wake
) -> Experiment:
    """Queue paused runs again; each continues exactly where it stopped.

    Idempotent; 409 if all runs are finished or stopping.
    """
    answer = _change(database, principal, note, experiment_id, experiments.resume)
    wake(answer.specification["execution"]["queue"])
    return answer


@router.post("/{experiment_id}/retry", responses=responses(404, 409, 422), summary="Retry")
def retry(
    principal: Submitter, experiment_id: ExperimentId, database: Store, note: Note, wake: Wake
) -> Experiment:
    """Queue failed and cancelled runs again, from their last checkpoints.

    Idempotent; 409 if there is nothing to retry.
    """
    answer = _change(database, principal, note, experiment_id, experiments.retry)
    wake(answer.specification["execution"]["queue"])
    return answer


@router.post(
    "/{experiment_id}/extend",
    responses=responses(400, 404, 409, 413, 415, 422),
    openapi_extra=body_of("ExperimentExtension"),
    summary="Extend by rounds or seeds",
)
def extend(
    principal: Submitter,
    experiment_id: ExperimentId,
    document: Document,
    database: Store,
    settings: Configuration,
    note: Note,
    wake: Wake,
) -> Experiment:
    """Add rounds or seeds to an experiment.

    Runs continue from their checkpoints, bit-identical to runs of the full length.

    Idempotent; 409 if completed rounds depend on the total number of rounds, for a search, or if
    all runs have failed or were cancelled. The provenance lists the `extensions`.
    """
    wanted = validate(ExperimentExtension, document.value)

    def measure(spec: ExperimentSpec) -> Sequence[int]:
        refuse_excess(spec, ExperimentLimits(settings.max_runs, settings.max_rounds, settings.max_parameters))
        return memory_needed(spec)

    def change(session: Session, id: str) -> ExperimentRecord:
        more, made_with = wanted.seeds or (), code()
        return extension.extend(
            session,
            id,
            rounds=wanted.rounds,
            seeds=more,
            measure=measure,
            key_id=principal.key_id,
            made_with=made_with,
        )

    answer = _change(database, principal, note, experiment_id, change)
    wake(answer.specification["execution"]["queue"])
    return answer


@router.delete("/{experiment_id}", status_code=204, responses=responses(404, 422), summary="Delete")
def delete(principal: Submitter, experiment_id: ExperimentId, database: Store, note: Note) -> None:
    """Remove an experiment with its rows, whatever its status, and its files soon after.

    A worker that has one of its runs drops it at its next commit.
    """
    with database.transaction() as session:
        experiments.find(session, experiment_id, principal.sees)
        experiments.delete(session, experiment_id)
        note(session, experiment_id)


def _change(
    database: Database, principal: Principal, note: Noting, experiment_id: str, change: Change
) -> Experiment:
    with database.transaction() as session:
        experiments.find(session, experiment_id, principal.sees)
        record = change(session, experiment_id)
        note(session, experiment_id)
        return experiment_answer(session, record)
