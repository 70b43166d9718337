"""Results: `/v1/experiments/{id}/results`, figures, theory, claims, reports and reproductions, and
`/v1/compare`.
"""

from collections.abc import Sequence
from functools import partial
from typing import IO, Annotated, Any, Literal

from fastapi import APIRouter, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from api.bundles.service import Slot
from api.experiments.service import create_once, new_reproduction
from api.http.audit_trail import Audit
from api.http.authentication import Reader, Submitter
from api.http.dependencies import (
    NO_NUL,
    REPLAYED,
    AppStateDep,
    DatabaseDep,
    ExperimentId,
    IdempotencyKey,
    created,
)
from api.http.problems import describe_errors
from api.results import queries, report
from api.results.compared_arms import MOST_ARMS, compare
from api.results.pictures import (
    FIGURE,
    DrawingGateDep,
    Drawn,
    Form,
    Looked,
    X,
    answer_in_thread,
    render_figure,
    select_results,
)
from api.results.queries import THEORY_POINTS, Chosen, Points, Windowed, arm_of
from api.results.reproduction import compare_with_original
from api.results.rounds import RoundsFile
from api.results.targets import target_of
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.provenance import pieces_of
from fedcore.platform.store import experiments
from fedcore.platform.store.records import REPRODUCES
from fedq.results.frames import Table
from fedq.results.presentation import ComparedFigure, RunFigure
from fedq.results.summaries import metric_names
from fedq.results.tables import CSV, PARQUET, encode_table
from fedq.schemas import Claims, Comparison, Experiment, Reproduction, Results, Theory

router = APIRouter(prefix="/v1", tags=["results"])

JSON = "application/json"

TableName = Annotated[Table, Query(description="For CSV and Parquet: summary over seeds, or curves.")]
Baseline = Annotated[
    str | None,
    Query(
        max_length=1_000,
        pattern=NO_NUL,
        description="Compare with this arm, by name or index, and not with the best of the others.",
    ),
]
Reach = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=NO_NUL,
        alias="target",
        description=(
            "Add the rounds, bytes and time that each arm needs to reach a value, e.g. `test_accuracy:0.9`."
        ),
        examples=["test_accuracy:0.9"],
    ),
]
By = Annotated[
    ComparedFigure | None,
    Query(
        description=(
            "Figure by which `best_arms` compares the arms: a run's final value, its best, its mean over the"
            " rounds (area), or what it spent until it reached the `target` (default: rounds with a target,"
            " else final)."
        )
    ),
]
ByValue = Annotated[
    RunFigure,
    Query(
        description=(
            "Figure by which `best_arms` compares the arms: a run's final value, its best, or its mean over"
            " the rounds (area)."
        )
    ),
]
CurvesSince = Annotated[
    str | None,
    Query(
        max_length=100_000,
        pattern=NO_NUL,
        description=(
            "Only rounds of curves that can have changed since this `position` of earlier results: of each"
            " arm those from `curves_from` on. Statistics cover all rounds."
        ),
    ),
]
Accept = Annotated[str | None, Header(include_in_schema=False)]
Overlay = Annotated[
    bool, Query(description="Also draw closed-form predictions, where available, as thin dotted lines.")
]
Shown = Annotated[
    list[Annotated[str, Query(max_length=1_000, pattern=NO_NUL)]] | None,
    Query(
        alias="arm",
        max_length=100,
        description="Only this arm, by name or index; may be repeated (default: all).",
    ),
]
TheoryPoints = Annotated[
    int, Query(ge=2, le=2_000, description="Maximum number of points of a curve; denser at the beginning.")
]
Arms = Annotated[
    list[Annotated[str, Query(max_length=300, pattern=NO_NUL)]],
    Query(
        alias="arm",
        min_length=1,
        max_length=100,
        description=(
            "An experiment id for all of its arms, or a single arm as `ID:INDEX` or `ID:NAME`; may be"
            " repeated."
        ),
        examples=[["exp_01k9x3zq7rh2v8m4t6w0ybe5nc:0", "exp_01k9x3zq7rh2v8m4t6w0ybe5nd"]],
    ),
]
Position = Annotated[
    int | None,
    Query(
        ge=0,
        lt=MOST_ARMS,
        description="Compare with the arm at this position, from 0, and not with the best of the others.",
    ),
]
ReportForm = Annotated[Literal["html", "md"], Path(description="Format: HTML or Markdown.")]
REPORT: dict[int | str, Any] = {
    200: {
        "description": "The report.",
        "content": {name.partition(";")[0]: {"schema": {"type": "string"}} for name in report.MEDIA.values()},
    },
    **describe_errors(404, 422),
}
TABLES = {CSV: {"schema": {"type": "string"}}, PARQUET: {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/experiments/{experiment_id}/results",
    response_model=Results,
    responses={
        200: {"description": "The results.", "content": TABLES},
        **describe_errors(404, 406, 422),
    },
    summary="Read results",
)
async def read_results(  # noqa: PLR0913, PLR0917 - what can be asked for
    principal: Reader,
    experiment_id: ExperimentId,
    state: AppStateDep,
    window: Windowed,
    accept: Accept = None,
    metric: Chosen = None,
    table: TableName = "summary",
    baseline: Baseline = None,
    target: Reach = None,
    since: CurvesSince = None,
    by: By = None,
) -> Results | Response:
    """Return best and final value of each metric with confidence intervals, traffic and curves for each
    arm, and the arms that may be the best, each beside the best of the others or beside a baseline.

    Results are final once the status of the experiment is final. CSV and Parquet contain one value
    per row.
    """
    media_type = _acceptable(accept or JSON, (JSON, CSV, PARQUET))
    goal, metrics = None if target is None else target_of(target), metric or metric_names()

    def work() -> Results | Response:
        results = queries.read_results(
            state.database, principal, experiment_id, metrics, window, baseline, goal, since, by
        )
        if media_type == JSON:
            return results
        return Response(encode_table(results, table, media_type), media_type=media_type)

    return await state.reading_gate.run(principal.owner, work)


@router.get(
    "/experiments/{experiment_id}/metrics",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The rounds.", "content": TABLES},
        **describe_errors(404, 406, 422),
    },
    summary="Read all rounds",
)
async def read_rounds(
    principal: Reader,
    experiment_id: ExperimentId,
    database: DatabaseDep,
    gate: DrawingGateDep,
    accept: Accept = None,
) -> StreamingResponse:
    """Return every round of every run as CSV (default) or Parquet, one per row, with the settings of
    its arm as columns.
    """
    media_type = _acceptable(accept or CSV, (CSV, PARQUET))

    def work() -> IO[bytes]:
        with database.reading() as session:
            experiment = experiments.find(session, experiment_id, principal.sees)
            return RoundsFile(session, experiment).write(media_type)

    file = await gate.run(principal.owner, work)
    name = f"{experiment_id}-rounds.{'csv' if media_type == CSV else 'parquet'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(pieces_of(file), media_type=media_type, headers=headers)


@router.get(
    "/experiments/{experiment_id}/figure.{form}",
    response_class=Response,
    responses=FIGURE,
    summary="Draw curves",
)
async def read_figure(  # noqa: PLR0913, PLR0917 - what can be asked for
    request: Request,
    look: Looked,
    principal: Reader,
    experiment_id: ExperimentId,
    form: Form,
    database: DatabaseDep,
    metric: Drawn = None,
    x: X = "round",
    points: Points = 1_000,
    theory: Overlay = False,
    arm: Shown = None,
) -> Response:
    """Draw the mean over seeds with a band of one standard deviation, without smoothing.

    Equal results give equal bytes.

    An arm has the same colour in every figure. The `Link` header and the metadata of the figure
    refer to the numbers.
    """

    def work() -> Response:
        results, chosen = select_results(
            partial(queries.read_results, database, principal, experiment_id), metric, points, x
        )
        if arm is not None:
            names = {one.name: one.index for one in results.arms}
            shown = [arm_of(names, wanted, "?arm") for wanted in arm]
            results = results.model_copy(update={"arms": [one for one in results.arms if one.index in shown]})
        said = queries.read_theory(database, principal, experiment_id) if theory else None
        return render_figure(request, results, chosen, x, form, look, said)

    return await answer_in_thread(request, principal, form, look, work)


@router.get(
    "/experiments/{experiment_id}/theory",
    responses=describe_errors(404, 422),
    summary="Read closed-form predictions",
)
async def read_theory(
    principal: Reader,
    experiment_id: ExperimentId,
    state: AppStateDep,
    points: TheoryPoints = THEORY_POINTS,
) -> Theory:
    """Return the closed form of each arm with formula, source and curves, or the reason why there
    is none.

    Closed forms cover quadratic and least-squares problems with exact gradients and full
    participation under FedAvg, FedProx, FedNova and FedLin.
    """
    work = partial(queries.read_theory, state.database, principal, experiment_id, points)
    return await state.reading_gate.run(principal.owner, work)


@router.get("/compare", responses=describe_errors(404, 422), summary="Compare arms")
async def read_comparison(
    principal: Reader,
    state: AppStateDep,
    arm: Arms,
    window: Windowed,
    metric: Chosen = None,
    baseline: Position = None,
    since: CurvesSince = None,
    by: ByValue = "final",
) -> Comparison:
    """Return results of arms of several experiments, with unambiguous names, and those that may be the best.

    Arms are compared seed by seed if they have the data set, partition and participation of the baseline,
    or the first arm, and share at least three seeds with it. `members` says which are.
    """
    metrics = metric or metric_names()
    work = partial(compare, state.database, principal, arm, metrics, window, baseline, since, by)
    return await state.reading_gate.run(principal.owner, work)


@router.get("/compare/figure.{form}", response_class=Response, responses=FIGURE, summary="Draw a comparison")
async def read_comparison_figure(  # noqa: PLR0913, PLR0917 - what can be asked for
    request: Request,
    look: Looked,
    principal: Reader,
    database: DatabaseDep,
    form: Form,
    arm: Arms,
    metric: Drawn = None,
    x: X = "round",
    points: Points = 1_000,
) -> Response:
    """Draw the curves of arms of any experiments."""

    def work() -> Response:
        found, chosen = select_results(partial(compare, database, principal, arm), metric, points, x)
        return render_figure(request, found, chosen, x, form, look)

    return await answer_in_thread(request, principal, form, look, work)


@router.get(
    "/experiments/{experiment_id}/claims",
    responses=describe_errors(404, 422),
    summary="Compare results with the publication",
)
async def read_claims(principal: Reader, experiment_id: ExperimentId, state: AppStateDep) -> Claims:
    """Return the published claims and numbers for an experiment submitted as a preset, with the
    measured results.

    Each claim has a verdict. Results are final once the status of the experiment is final.
    """
    work = partial(queries.read_claims, state.database, principal, experiment_id)
    return await state.reading_gate.run(principal.owner, work)


@router.get(
    "/experiments/{experiment_id}/report.{form}",
    response_class=Response,
    responses=REPORT,
    summary="Read a report",
)
async def read_report(
    principal: Reader,
    experiment_id: ExperimentId,
    form: ReportForm,
    database: DatabaseDep,
    gate: DrawingGateDep,
) -> Response:
    """Return a file with a table and figure of each metric, claims, runs, specification, provenance
    and how to reproduce it.

    HTML contains its figures. Markdown shows files beside it, `ID-METRIC.svg`: the figures of
    `figure.svg?metric=METRIC`. A report of an unfinished experiment lists what is missing.
    """
    work = partial(report.render, form, principal, experiment_id, database)
    text = await gate.run(principal.owner, work)
    return Response(text, media_type=report.MEDIA[form], headers={"Content-Security-Policy": report.POLICY})


@router.post(
    "/experiments/{experiment_id}/reproduce",
    status_code=201,
    responses={**created("reproduction"), **describe_errors(404, 409, 422)},
    summary="Reproduce an experiment",
)
def reproduce_experiment(
    principal: Submitter,
    facts: Audit,
    experiment_id: ExperimentId,
    _slot: Slot,
    state: AppStateDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Experiment:
    """Submit an experiment again; each run uses the engine of the original run.

    `GET .../reproduction` of the new experiment returns the comparison. 409 unless the original has
    succeeded.
    """
    answer, is_new = create_once(
        state.database,
        principal,
        lambda: new_reproduction(state, principal, experiment_id),
        facts,
        idempotency_key=idempotency_key,
        request_hash=f"reproduce {experiment_id}",
    )
    if not is_new:
        response.headers.update(REPLAYED)
    response.headers["Location"] = f"/v1/experiments/{answer.id}"
    state.wakeups.notify([answer.specification["execution"]["queue"]])
    return answer


@router.get(
    "/experiments/{experiment_id}/reproduction",
    responses=describe_errors(404, 422),
    summary="Compare a reproduction with its original",
)
async def read_reproduction(
    principal: Reader, experiment_id: ExperimentId, state: AppStateDep
) -> Reproduction:
    """Return the first differences between an experiment created by `POST .../reproduce` and its
    original, and their likely cause.

    All numbers of all rounds except wall-clock times are compared bit by bit, and final models by
    their digests.
    """

    def work() -> Reproduction:
        with state.database.reading() as session:
            here = experiments.find(session, experiment_id, principal.sees)
            if REPRODUCES not in here.provenance:
                raise ResourceNotFoundError(
                    f"{here.id} is not a reproduction of another experiment; reproduce that one first"
                )
            original = experiments.find(session, here.provenance[REPRODUCES], principal.sees)
            return compare_with_original(session, here, original)

    return await state.reading_gate.run(principal.owner, work)


def _acceptable(accept: str, offered: Sequence[str]) -> str:
    """Return the first of the `offered` media types that an Accept header allows, by its preference;
    raises 406.
    """
    ranges = sorted((_range(entry) for entry in accept.split(",")), key=lambda entry: -entry[1])
    for media_type, quality in ranges:
        if quality > 0:
            for offer in offered:
                if media_type in (offer, "*/*", f"{offer.partition('/')[0]}/*"):
                    return offer
    raise HTTPException(406, f"It comes as {' or '.join(offered)}, not as {accept}.")


def _range(entry: str) -> tuple[str, float]:
    media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
    quality = next((value[2:] for value in parameters if value.startswith("q=")), "1")
    try:
        return media_type, float(quality)
    except ValueError:
        return media_type, 0.0
