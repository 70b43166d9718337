"""`/v1/experiments/{id}/results` and `/figure.svg`: what came out, as JSON, table or picture."""

from functools import partial
from typing import Annotated

from fastapi import Header, HTTPException, Query, Request, Response

from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, ExperimentId, Store
from api.http.problems import responses
from api.http.routing import Router
from api.results import queries
from api.results.pictures import FIGURE, Drawn, Form, Looked, X, answered, drawable, picture
from api.results.queries import Chosen, Points, Windowed, arm_of
from api.results.summaries import METRICS
from api.results.targets import target_of
from api.results.theory import read_theory
from fedq.results.tables import CSV, PARQUET, Table, written
from fedq.schemas import Results

router = Router(prefix="/v1/experiments", tags=["results"])

JSON = "application/json"

TableName = Annotated[Table, Query(description="For CSV and Parquet: summary over seeds, or curves.")]
Baseline = Annotated[
    str | None,
    Query(max_length=1_000, pattern=NO_NUL, description="Baseline arm, by name or index (default: arm 0)."),
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


@router.get(
    "/{experiment_id}/results",
    response_model=Results,
    responses={
        200: {
            "description": "The results.",
            "content": {
                CSV: {"schema": {"type": "string"}},
                PARQUET: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        **responses(404, 406, 422),
    },
    summary="Read results",
)
def read_results(  # noqa: PLR0913, PLR0917 - what can be asked for
    principal: Reader,
    experiment_id: ExperimentId,
    database: Store,
    window: Windowed,
    accept: Accept = None,
    metric: Chosen = None,
    table: TableName = "summary",
    baseline: Baseline = None,
    target: Reach = None,
) -> Results | Response:
    """Return best and final value of each metric with confidence intervals and paired tests,
    traffic and curves for each arm.

    Results are final once the status of the experiment is final. CSV and Parquet contain one value
    per row.
    """
    media_type = _acceptable(accept or JSON)
    goal = None if target is None else target_of(target)
    results = queries.read_results(
        database, principal, experiment_id, metric or METRICS, window, baseline, goal
    )
    return (
        results
        if media_type == JSON
        else Response(written(results, table, media_type), media_type=media_type)
    )


@router.get(
    "/{experiment_id}/figure.{form}",
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
    database: Store,
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
        results, chosen = drawable(
            partial(queries.read_results, database, principal, experiment_id), metric, points, x
        )
        if arm is not None:
            names = {one.name: one.index for one in results.arms}
            shown = [arm_of(names, wanted, "?arm") for wanted in arm]
            results = results.model_copy(update={"arms": [one for one in results.arms if one.index in shown]})
        said = read_theory(database, principal, experiment_id) if theory else None
        return picture(request, results, chosen, x, form, look, said)

    return await answered(request, principal, form, look, work)


def _acceptable(accept: str) -> str:
    """The first media type of an Accept header that there is; raises 406."""
    ranges = sorted((_range(entry) for entry in accept.split(",")), key=lambda entry: -entry[1])
    for media_type, quality in ranges:
        if quality > 0:
            if media_type in (JSON, CSV, PARQUET):
                return media_type
            if media_type in ("*/*", "application/*"):
                return JSON
            if media_type == "text/*":
                return CSV
    raise HTTPException(406, f"Results come as {JSON}, {CSV} or {PARQUET}, not as {accept}.")


def _range(entry: str) -> tuple[str, float]:
    media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
    quality = next((value[2:] for value in parameters if value.startswith("q=")), "1")
    try:
        return media_type, float(quality)
    except ValueError:
        return media_type, 0.0
