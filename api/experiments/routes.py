"""`/v1/experiments` and `/v1/imports`: submit, import, list, read, change, delete."""

from collections.abc import Callable, Sequence
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Response

from api.access import EDIT_ACCESS, READ_ACCESS, access_answer, change_access
from api.bundles.service import CodeSlot, ResultsDocument, ResultsSlot, has_code
from api.experiments.imports import import_experiment
from api.experiments.service import (
    create_once,
    experiment_answer,
    new_submission,
    read_submission,
    service_plan,
    summary_answer,
)
from api.http.audit_trail import Audit
from api.http.authentication import Reader, Submitter
from api.http.conditional import IfMatch, check_match
from api.http.dependencies import (
    NO_NUL,
    REPLAYED,
    AppStateDep,
    Cursor,
    DatabaseDep,
    ExperimentId,
    IdempotencyKey,
    Moment,
    context_of,
    created,
)
from api.http.documents import Document, body_of, validate
from api.http.parameters import NextLink
from api.http.problems import describe_errors
from fedcore.platform.access import Principal
from fedcore.platform.provenance import describe_code
from fedcore.platform.store import (
    Database,
    Session,
    Status,
    audit,
    experiments,
    extension,
    lifecycle,
    progress,
)
from fedcore.platform.store.audit import AuditFacts
from fedcore.platform.store.experiments import Filter
from fedcore.platform.store.tables import ExperimentRecord
from fedcore.platform.tracing import span
from fedcore.spec import ExperimentSpec
from fedq.planning.estimates import memory_needed
from fedq.schemas import (
    Experiment,
    ExperimentEdit,
    ExperimentExtension,
    ExperimentSummary,
    Page,
    Plan,
    SharedAccess,
)

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])
imports_router = APIRouter(prefix="/v1/imports", tags=["experiments"])

Change = Callable[[Session, str], ExperimentRecord]

DryRun = Annotated[bool, Query(description="Validate and estimate; store nothing.")]
StatusFilter = Annotated[Status | None, Query(description="Return only experiments with this status.")]
TagFilter = Annotated[
    str | None,
    Query(
        max_length=64,
        pattern=NO_NUL,
        description="Return only experiments with this tag.",
        examples=["digits"],
    ),
]
NameFilter = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=NO_NUL,
        description="Return only experiments with exactly this name.",
        examples=["momentum on digits"],
    ),
]
SearchFilter = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=NO_NUL,
        description=(
            "Return only experiments whose name contains this text, ignoring case (on SQLite, of ASCII"
            " letters only)."
        ),
        examples=["digits"],
    ),
]
After = Annotated[
    Moment | None,
    Query(description="Return only experiments submitted at or after this time (ISO 8601 with time zone)."),
]
Before = Annotated[
    Moment | None,
    Query(description="Return only experiments submitted before this time (ISO 8601 with time zone)."),
]
Starred = Annotated[
    bool | None, Query(description="Return only experiments with a star, or only those without one.")
]
Archived = Annotated[bool, Query(description="Return archived experiments instead of all others.")]
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of experiments per page.")]


async def _wanted(  # noqa: PLR0913, PLR0917 - a filter each
    principal: Reader,
    status: StatusFilter = None,
    tag: TagFilter = None,
    name: NameFilter = None,
    search: SearchFilter = None,
    created_after: After = None,
    created_before: Before = None,
    starred: Starred = None,
    archived: Archived = False,
) -> Filter:
    return Filter(
        None, status, tag, name, created_after, created_before, principal.sees, search, starred, archived
    )


Wanted = Annotated[Filter, Depends(_wanted)]


# Known before the body is read: an invalid body of a dry run is not worth an audit entry.
async def _dry_run(request: Request, dry_run: DryRun = False) -> bool:
    context_of(request.scope).is_dry_run = dry_run
    return dry_run


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Plan, "description": "With `dry_run`: the plan."},
        **created("experiment"),
        **describe_errors(400, 413, 415, 422),
    },
    openapi_extra=body_of("ExperimentSpec", "PresetSubmission"),
    summary="Submit an experiment",
)
def submit_experiment(
    principal: Submitter,
    facts: Audit,
    dry_run: Annotated[bool, Depends(_dry_run)],
    document: Document,
    _slot: CodeSlot,
    state: AppStateDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Experiment | Plan:
    """Validate a specification, or a preset with overrides, and queue its runs: each arm of the
    sweep with each seed.
    """
    if dry_run:
        response.status_code = 200
        return service_plan(document.value, state, principal)
    with span("submit"):
        answer, is_new = create_once(
            state.database,
            principal,
            lambda: new_submission(principal, read_submission(document.value, state, principal)),
            facts,
            idempotency_key=idempotency_key,
            request_hash=document.digest if idempotency_key else "",
        )
    if not is_new:
        response.headers.update(REPLAYED)
    response.headers["Location"] = f"{router.prefix}/{answer.id}"
    state.wakeups.notify([answer.specification["execution"]["queue"]])
    return answer


@router.get("", responses=describe_errors(422), summary="List experiments")
def read_experiments(
    wanted: Wanted, database: DatabaseDep, link: NextLink, limit: Limit = 50, cursor: Cursor = None
) -> Page[ExperimentSummary]:
    """Return experiments, newest first; your own and experiments that others share with you.
    Administrators see the experiments of all owners.

    Archived experiments are returned with `archived=true` only.
    """
    with database.reading() as session:
        page = experiments.page(session, wanted, limit=limit, cursor=cursor)
        progresses = progress.progress_of(session, [record.id for record in page.items])
    return Page[ExperimentSummary](
        items=[summary_answer(record, progresses[record.id]) for record in page.items], next=link(page.next)
    )


@router.get("/{experiment_id}", responses=describe_errors(404, 422), summary="Read an experiment")
def read_experiment(principal: Reader, experiment_id: ExperimentId, database: DatabaseDep) -> Experiment:
    """Return an experiment with status, progress, arms, specification and provenance."""
    with database.reading() as session:
        return experiment_answer(session, experiments.find(session, experiment_id, principal.sees))


@router.patch(
    "/{experiment_id}",
    responses=describe_errors(400, 404, 412, 413, 415, 422),
    openapi_extra=body_of("ExperimentEdit"),
    summary="Edit name, tags, priority, notes, star or archive",
)
def edit_experiment(
    principal: Submitter,
    experiment_id: ExperimentId,
    document: Document,
    database: DatabaseDep,
    facts: Audit,
    if_match: IfMatch = None,
) -> Experiment:
    """Change the given fields of an experiment.

    A new priority applies to all of its runs, including later retries.
    """
    changes = validate(ExperimentEdit, document.value)
    return _change(
        database,
        principal,
        facts,
        experiment_id,
        lambda session, id: experiments.edit(session, id, **dict(changes)),
        if_match,
    )


@router.post("/{experiment_id}/cancel", responses=describe_errors(404, 409, 422), summary="Cancel")
def cancel_experiment(
    principal: Submitter, experiment_id: ExperimentId, database: DatabaseDep, facts: Audit
) -> Experiment:
    """Cancel unfinished runs; runs in progress stop at their next round boundary.

    Idempotent; 409 if all runs have finished.
    """
    return _change(database, principal, facts, experiment_id, lifecycle.cancel)


@router.post("/{experiment_id}/pause", responses=describe_errors(404, 409, 422), summary="Pause")
def pause_experiment(
    principal: Submitter, experiment_id: ExperimentId, database: DatabaseDep, facts: Audit
) -> Experiment:
    """Pause until `resume`; runs in progress stop at their next round boundary.

    Idempotent; 409 if all runs are finished or stopping.
    """
    return _change(database, principal, facts, experiment_id, lifecycle.pause)


@router.post("/{experiment_id}/resume", responses=describe_errors(404, 409, 422), summary="Resume")
def resume_experiment(
    principal: Submitter, experiment_id: ExperimentId, state: AppStateDep, facts: Audit
) -> Experiment:
    """Queue paused runs again; each continues exactly where it stopped.

    Idempotent; 409 if all runs are finished or stopping.
    """
    answer = _change(state.database, principal, facts, experiment_id, lifecycle.resume)
    state.wakeups.notify([answer.specification["execution"]["queue"]])
    return answer


@router.post("/{experiment_id}/retry", responses=describe_errors(404, 409, 422), summary="Retry")
def retry_experiment(
    principal: Submitter, experiment_id: ExperimentId, state: AppStateDep, facts: Audit
) -> Experiment:
    """Queue failed and cancelled runs again, from their last checkpoints.

    Idempotent; 409 if there is nothing to retry.
    """
    answer = _change(state.database, principal, facts, experiment_id, lifecycle.retry)
    state.wakeups.notify([answer.specification["execution"]["queue"]])
    return answer


@router.post(
    "/{experiment_id}/extend",
    responses=describe_errors(400, 404, 409, 413, 415, 422),
    openapi_extra=body_of("ExperimentExtension"),
    summary="Extend by rounds or seeds",
)
def extend_experiment(
    principal: Submitter, experiment_id: ExperimentId, document: Document, state: AppStateDep, facts: Audit
) -> Experiment:
    """Add rounds or seeds to an experiment.

    Runs continue from their checkpoints, bit-identical to runs of the full length.

    Idempotent; 409 if completed rounds depend on the total number of rounds, for a search, or if
    all runs have failed or were cancelled. The provenance lists the `extensions`.
    """
    wanted = validate(ExperimentExtension, document.value)

    def measure(spec: ExperimentSpec) -> Sequence[int] | None:
        # The model of a bundle has the parameters it had, and its runs need the memory they needed.
        return None if spec.code is not None else memory_needed(spec)

    def change(session: Session, id: str) -> ExperimentRecord:
        return extension.extend(
            session,
            id,
            rounds=wanted.rounds,
            seeds=wanted.seeds or (),
            measure=measure,
            key_id=principal.key_id,
            may_use_all=principal.sees is None,
            made_with=describe_code(),
        )

    answer = _change(state.database, principal, facts, experiment_id, change)
    state.wakeups.notify([answer.specification["execution"]["queue"]])
    return answer


@router.get("/{experiment_id}/access", **READ_ACCESS)
def read_access(principal: Reader, experiment_id: ExperimentId, database: DatabaseDep) -> SharedAccess:
    """Return the owner of an experiment and the users with whom it is shared."""
    with database.reading() as session:
        return access_answer(session, experiments.find(session, experiment_id, principal.sees))


@router.patch("/{experiment_id}/access", **EDIT_ACCESS)
def edit_access(
    principal: Submitter, experiment_id: ExperimentId, document: Document, database: DatabaseDep, facts: Audit
) -> SharedAccess:
    """Give other users of the service read or write access to an experiment of yours, or take it
    back.

    A user is the owner of valid API keys. A name in both lists may change the experiment.
    """
    with database.transaction() as session:
        record = experiments.find(session, experiment_id, principal.sees)
        return change_access(session, record, principal.sees, document, facts, experiment_id)


@router.delete(
    "/{experiment_id}", status_code=204, responses=describe_errors(404, 412, 422), summary="Delete"
)
def delete_experiment(
    principal: Submitter,
    experiment_id: ExperimentId,
    database: DatabaseDep,
    facts: Audit,
    if_match: IfMatch = None,
) -> None:
    """Remove an experiment of yours with its rows, whatever its status, and its files soon after.

    A worker that has one of its runs drops it at its next commit; the processes of a code bundle are
    ended before that, within FEDQ_LEASE_SECONDS.
    """
    with database.transaction() as session:
        experiments.find_own(session, experiment_id, principal.sees)
        _check(session, experiment_id, if_match)
        experiments.delete(session, experiment_id)
        audit.record(session, facts, experiment_id)


@imports_router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Experiment, "description": "The file was already imported as this experiment."},
        **created("experiment"),
        **describe_errors(400, 413, 415, 422),
    },
    openapi_extra=body_of("ResultsFile"),
    summary="Import results",
)
async def import_results(
    principal: Submitter,
    facts: Audit,
    document: ResultsDocument,
    _slot: ResultsSlot,
    state: AppStateDep,
    response: Response,
) -> Experiment:
    """Import a file written by `fedq export --to fedq` as a finished experiment with all its
    results.

    It can be read, compared and drawn like any other experiment. It has no models and checkpoints,
    so `retry` and `extend` return 409. Importing the same file again returns the same experiment.

    The `code` of the file is checked as by `POST /v1/bundles` and becomes a code bundle of yours, which
    requires a key of scope `code`. `missing` says what else a reproduction needs.
    """
    gate = state.code_gate if has_code(document.value) else None
    answer, is_new = await to_thread.run_sync(
        import_experiment, document.value, principal, facts, state, limiter=gate
    )
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"{router.prefix}/{answer.id}"
    return answer


def _change(
    database: Database,
    principal: Principal,
    facts: AuditFacts,
    experiment_id: str,
    change: Change,
    if_match: str | None = None,
) -> Experiment:
    with database.transaction() as session:
        experiments.find_to_change(session, experiment_id, principal.sees)
        _check(session, experiment_id, if_match)
        record = change(session, experiment_id)
        audit.record(session, facts, experiment_id)
        return experiment_answer(session, record)


def _check(session: Session, experiment_id: str, if_match: str | None) -> None:
    if if_match is not None:
        # Locked, so that of two changes of the same state the second is refused.
        lifecycle.lock_runs(session, experiment_id)
        record = experiments.find(session, experiment_id)
        session.refresh(record)
        check_match(if_match, experiment_answer(session, record))
