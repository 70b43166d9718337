"""`/v1/experiments/{id}/runs` and `/v1/runs/{id}`: runs, their rows, logs, resource use and files."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, StreamingResponse

from api.http.audit_trail import Audit
from api.http.authentication import Reader, Submitter
from api.http.conditional import IfMatch, check_match
from api.http.dependencies import AppState, AppStateDep, Cursor, DatabaseDep, ExperimentId, RunId, SettingsDep
from api.http.documents import Document, body_of, validate
from api.http.parameters import NextLink, StartAfter
from api.http.problems import describe_errors
from api.runs.service import run_answer, stored_model
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.access import Principal
from fedcore.platform.provenance import model_digests, model_pieces, pieces_of
from fedcore.platform.status import LogLevel
from fedcore.platform.store import (
    Session,
    audit,
    curves,
    experiments,
    runs,
    telemetry,
    wait_reasons,
)
from fedcore.platform.store.tables import RunRecord
from fedcore.platform.store.telemetry import MAX_LINES, MAX_SAMPLES
from fedcore.settings import Settings
from fedq.schemas import (
    LogLine,
    LogPage,
    MetricsPage,
    Page,
    ResourcePage,
    ResourceSample,
    RoundRow,
    Run,
    RunEdit,
)

router = APIRouter(prefix="/v1", tags=["runs"])

SAFETENSORS = "application/octet-stream"
FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A safetensors file.",
        "content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}},
    }
}

Which = Annotated[Literal["final", "best"], Query(description="The final model, or that of the best round.")]
Limit = Annotated[int, Query(ge=1, le=1_000, description="Maximum number of runs per page.")]
RowLimit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of rounds per page.")]
LineLimit = Annotated[int, Query(ge=1, le=MAX_LINES, description="Maximum number of lines per page.")]
SampleLimit = Annotated[int, Query(ge=1, le=MAX_SAMPLES, description="Maximum number of samples per page.")]
Level = Annotated[LogLevel, Query(description="Return only lines of this level and of more severe ones.")]
TEXT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A line for each event, with tracebacks.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/experiments/{experiment_id}/runs",
    responses=describe_errors(404, 422),
    summary="List the runs of an experiment",
)
def read_runs(
    principal: Reader,
    experiment_id: ExperimentId,
    database: DatabaseDep,
    link: NextLink,
    settings: SettingsDep,
    limit: Limit = 1_000,
    cursor: Cursor = None,
) -> Page[Run]:
    """Return the runs in the order of arms and seeds."""
    with database.reading() as session:
        experiments.find(session, experiment_id, principal.sees)
        records = runs.of_experiment(session, experiment_id, after=cursor, limit=limit + 1)
        page, more = records[:limit], records[limit:]
        held = wait_reasons.reasons(session, page, settings.seen_seconds)
    return Page[Run](
        items=[run_answer(record, held.get(record.id)) for record in page],
        next=link(page[-1].id if more else None),
    )


@router.get("/runs/{run_id}", responses=describe_errors(404, 422), summary="Read a run")
def read_run(principal: Reader, run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> Run:
    """Return a run with status, progress and provenance."""
    with database.reading() as session:
        return _answer(session, runs.find(session, run_id, principal.sees), settings)


@router.patch(
    "/runs/{run_id}",
    responses=describe_errors(400, 404, 412, 413, 415, 422),
    openapi_extra=body_of("RunEdit"),
    summary="Edit the notes of a run",
)
def edit_run(
    principal: Submitter,
    run_id: RunId,
    document: Document,
    database: DatabaseDep,
    settings: SettingsDep,
    facts: Audit,
    if_match: IfMatch = None,
) -> Run:
    """Change the given fields of a run."""
    changes = validate(RunEdit, document.value)
    with database.transaction() as session:
        run = runs.find(session, run_id, principal.sees)
        experiments.find_to_change(session, run.experiment_id, principal.sees)
        if if_match is not None:
            # Locked, so that of two changes of the same state the second is refused.
            session.refresh(run, with_for_update=True)
            check_match(if_match, _answer(session, run, settings))
        record = runs.edit(session, run_id, notes=changes.notes)
        audit.record(session, facts, run_id)
        return _answer(session, record, settings)


def _answer(session: Session, record: RunRecord, settings: Settings) -> Run:
    held = wait_reasons.reasons(session, [record], settings.seen_seconds)
    return run_answer(record, held.get(record.id))


@router.get("/runs/{run_id}/metrics", responses=describe_errors(404, 422), summary="Read the rounds of a run")
def read_run_metrics(
    principal: Reader,
    run_id: RunId,
    database: DatabaseDep,
    link: NextLink,
    start: StartAfter = 0,
    limit: RowLimit = 1_000,
) -> MetricsPage:
    """Return the rounds after a given one, in order.

    Poll with `cursor` set to the last `next`. The `Link` header leads to further rounds that are
    there already.
    """
    with database.reading() as session:
        run = runs.find(session, run_id, principal.sees)
        found = curves.after(session, run_id, start, limit) if run.done > start else ()
    rows = [RoundRow.model_validate(record) for record in found]
    last = rows[-1].round if rows else start
    link(str(last) if last < run.done else None)
    return MetricsPage(run_id=run_id, status=run.status, items=rows, next=last)


@router.get("/runs/{run_id}/logs", responses=describe_errors(404, 422), summary="Read the log of a run")
def read_run_logs(
    principal: Reader,
    run_id: RunId,
    database: DatabaseDep,
    link: NextLink,
    start: StartAfter = 0,
    level: Level = LogLevel.DEBUG,
    limit: LineLimit = MAX_LINES,
) -> LogPage:
    """Return what workers logged while they held the run, in the order in which they stored it: the
    last 1,000 lines.

    Poll with `cursor` set to the last `next`. Workers store lines every few seconds, and with the end
    of their work.
    """
    with database.reading() as session:
        run = runs.find(session, run_id, principal.sees)
        found = telemetry.log_lines(session, run_id, start, limit + 1, level)
    items = [LogLine.model_validate(record) for record in found[:limit]]
    last = items[-1].number if items else start
    link(str(last) if len(found) > limit else None)
    return LogPage(run_id=run_id, status=run.status, items=items, next=last)


@router.get(
    "/runs/{run_id}/logs.txt",
    response_class=PlainTextResponse,
    responses={**TEXT, **describe_errors(404, 422)},
    summary="Download the log of a run as text",
)
def read_run_logs_as_text(
    principal: Reader, run_id: RunId, database: DatabaseDep, level: Level = LogLevel.DEBUG
) -> PlainTextResponse:
    """Return the log of a run as a text file."""
    with database.reading() as session:
        runs.find(session, run_id, principal.sees)
        found = telemetry.log_lines(session, run_id, level=level)
    text = "".join(f"{LogLine.model_validate(record)}\n" for record in found)
    return PlainTextResponse(text, headers={"Content-Disposition": f'attachment; filename="{run_id}.log"'})


@router.get(
    "/runs/{run_id}/resources", responses=describe_errors(404, 422), summary="Read the resource use of a run"
)
def read_run_resources(
    principal: Reader,
    run_id: RunId,
    database: DatabaseDep,
    link: NextLink,
    start: StartAfter = 0,
    limit: SampleLimit = MAX_SAMPLES,
) -> ResourcePage:
    """Return processors, memory and GPU that workers used while they held the run, in order: at most
    600 samples, of which neighbours are merged when there are more.

    Poll with `cursor` set to the last `next`. Runs that train together as a batch share one process, and
    each has the use of the whole process.
    """
    with database.reading() as session:
        run = runs.find(session, run_id, principal.sees)
        found = telemetry.resource_samples(session, run_id, start, limit + 1)
    items = [ResourceSample.model_validate(record) for record in found[:limit]]
    last = items[-1].number if items else start
    link(str(last) if len(found) > limit else None)
    return ResourcePage(run_id=run_id, status=run.status, items=items, next=last)


@router.get(
    "/runs/{run_id}/model",
    response_class=StreamingResponse,
    responses={**FILE, **describe_errors(404, 422)},
    summary="Download the final or the best model",
)
def read_model(
    principal: Reader, run_id: RunId, state: AppStateDep, which: Which = "final"
) -> StreamingResponse:
    """Return the parameters of the global model as safetensors, named as in its module: after the last
    round, or with `which=best` after the best evaluated one, which `best_model` of the run describes.

    404 until the run has succeeded, and if the file is not the one that the run has stored. Where that
    shows only at the end of a large file, the response is not completed.
    """
    with state.database.reading() as session:
        run = runs.find(session, run_id, principal.sees)
    key = stored_model(run, which)
    if key is None:
        raise ResourceNotFoundError(f"run {run_id} has no {which} model, or none yet")
    pieces = model_pieces(state.storage.open(key), key, model_digests(run.model, run.provenance)[key])
    return _file(pieces, f"{run_id}.safetensors" if which == "final" else f"{run_id}-best.safetensors")


@router.get(
    "/runs/{run_id}/checkpoint",
    response_class=StreamingResponse,
    responses={**FILE, **describe_errors(404, 422)},
    summary="Download the latest checkpoint",
)
def read_checkpoint(principal: Reader, run_id: RunId, state: AppStateDep) -> StreamingResponse:
    """Return the complete state of the run after its last committed round as safetensors.

    `fedcore.run` can resume from it.
    """
    try:
        return _checkpoint(principal, run_id, state)
    except ResourceNotFoundError:
        # A newer one may have taken its place between the two reads.
        return _checkpoint(principal, run_id, state)


def _checkpoint(principal: Principal, run_id: str, state: AppState) -> StreamingResponse:
    with state.database.reading() as session:
        key = runs.find(session, run_id, principal.sees).checkpoint
    if key is None:
        raise ResourceNotFoundError(f"run {run_id} has no checkpoint")
    return _file(pieces_of(state.storage.open(key)), f"{run_id}-checkpoint.safetensors")


def _file(pieces: Iterator[bytes], name: str) -> StreamingResponse:
    # Begun here, so that a damaged file, or a storage that fails, is answered as such.
    first = next(pieces, b"")
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(chain([first], pieces), media_type=SAFETENSORS, headers=headers)
