"""`/v1/experiments`: submitted, listed, read."""

from functools import partial
from typing import Annotated, Any, NamedTuple

import structlog
from fastapi import Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.experiments.responses import experiment_answer, summary_answer
from api.experiments.service import Submission, SubmissionBatcher, order_of, specification
from api.experiments.service_estimates import add_service_estimates
from api.http import audit_trail
from api.http.authentication import Reader, Submitter
from api.http.dependencies import NO_NUL, Cursor, ExperimentId, IdempotencyKey, Moment, Store, Wake
from api.http.documents import Document, Parsed, body_of
from api.http.problems import responses
from api.http.routing import Router
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, Status, experiments, progress
from fedcore.platform.store.experiments import Filter, NewExperiment
from fedcore.platform.tracing import span
from fedcore.settings import Settings
from fedcore.spec import ExperimentSpec
from fedq.planning.estimates import plan
from fedq.schemas import Experiment, ExperimentPage, Plan

router = Router(prefix="/v1/experiments", tags=["experiments"])
log = structlog.stdlib.get_logger("fedq.api")

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
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of experiments per page.")]


async def _wanted(
    principal: Reader,
    status: StatusFilter = None,
    tag: TagFilter = None,
    name: NameFilter = None,
    search: SearchFilter = None,
    created_after: After = None,
    created_before: Before = None,
) -> Filter:
    return Filter(principal.sees, status, tag, name, created_after, created_before, search)


Wanted = Annotated[Filter, Depends(_wanted)]


class SubmissionRequest(NamedTuple):
    """What somebody asks for, not looked at yet."""

    document: Parsed
    dry_run: bool
    database: Database
    settings: Settings

    def foresee(self, principal: Principal) -> Plan:
        """What would come of it."""
        spec, _ = self._read(principal)
        return add_service_estimates(plan(spec), spec, self.database, self.settings, principal)

    def order(self, principal: Principal, idempotency_key: str | None) -> NewExperiment:
        """What the store is asked for."""
        spec, provenance = self._read(principal)
        return order_of(
            principal, spec, provenance, idempotency_key, self.document.digest if idempotency_key else None
        )

    def _read(self, principal: Principal) -> tuple[ExperimentSpec, dict[str, Any]]:
        """The specification, and its provenance; raises InvalidRequestError or
        SpecificationError.
        """
        return specification(self.document.value, self.database, self.settings, principal.sees)


async def _trial(request: Request, dry_run: DryRun = False) -> bool:
    # Known before the body is read: what is wrong with that harms nothing where it is only tried
    # out.
    request.state.trial = dry_run
    return dry_run


async def _asked(
    request: Request, dry_run: Annotated[bool, Depends(_trial)], document: Document
) -> SubmissionRequest:
    return SubmissionRequest(document, dry_run, request.app.state.database, request.app.state.settings)


Submitted = Annotated[SubmissionRequest, Depends(_asked)]


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": Plan, "description": "With `dry_run`: the plan."},
        201: {
            "headers": {"Location": {"description": "URL of the experiment.", "schema": {"type": "string"}}}
        },
        **responses(400, 413, 415, 422),
    },
    openapi_extra=body_of("ExperimentSpec", "PresetSubmission"),
    summary="Submit an experiment",
)
async def submit(
    principal: Submitter,
    submitted: Submitted,
    request: Request,
    response: Response,
    wake: Wake,
    idempotency_key: IdempotencyKey = None,
) -> Experiment | Plan:
    """Validate a specification, or a preset with overrides, and queue its runs: each arm of the
    sweep with each seed.
    """
    if submitted.dry_run:
        response.status_code = 200
        return await run_in_threadpool(submitted.foresee, principal)
    intake: SubmissionBatcher = request.app.state.intake
    with span("submit"):
        order = await run_in_threadpool(submitted.order, principal, idempotency_key)
        answer = await intake.store(Submission(order, partial(audit_trail.of, request)))
    request.state.noted = True
    queue = order.spec.execution.queue
    log.info("experiment submitted", experiment_id=answer.id, queue=queue)
    response.headers["Location"] = f"{router.prefix}/{answer.id}"
    wake(queue)
    return answer


@router.get("", responses=responses(422), summary="List experiments")
def read_experiments(
    wanted: Wanted, database: Store, limit: Limit = 50, cursor: Cursor = None
) -> ExperimentPage:
    """Return experiments, newest first; administrators see those of all owners."""
    with database.reading() as session:
        page = experiments.page(session, wanted, limit=limit, cursor=cursor)
        progresses = progress.progress_of(session, [record.id for record in page.items])
    return ExperimentPage(
        items=[summary_answer(record, progresses[record.id]) for record in page.items], next=page.next
    )


@router.get("/{experiment_id}", responses=responses(404, 422), summary="Read an experiment")
def read_experiment(principal: Reader, experiment_id: ExperimentId, database: Store) -> Experiment:
    """Return an experiment with status, progress, arms, specification and provenance."""
    with database.reading() as session:
        return experiment_answer(session, experiments.find(session, experiment_id, principal.sees))
