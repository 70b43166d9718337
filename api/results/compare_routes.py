"""`/v1/compare`: arms of any experiments side by side."""

from functools import partial
from typing import Annotated

from fastapi import Query, Request, Response

from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, Store
from api.http.problems import responses
from api.http.routing import Router
from api.results.compared_arms import MOST_ARMS, compare
from api.results.pictures import FIGURE, Drawn, Form, Looked, X, answered, drawable, picture
from api.results.queries import Chosen, Points, Windowed
from api.results.summaries import METRICS
from fedq.schemas import Comparison

router = Router(prefix="/v1/compare", tags=["results"])

Wanted = Annotated[
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
Baseline = Annotated[
    int, Query(ge=0, lt=MOST_ARMS, description="Position of the baseline arm in the comparison, from 0.")
]


@router.get("", responses=responses(404, 422), summary="Compare arms")
def read_comparison(
    principal: Reader,
    database: Store,
    arm: Wanted,
    window: Windowed,
    metric: Chosen = None,
    baseline: Baseline = 0,
) -> Comparison:
    """Return results of arms of several experiments, with unambiguous names and differences from
    one of them.

    Differences are paired by seed if both arms have the same data, partition and participation and
    share at least two seeds. Otherwise, the arms are independent samples (Welch's t-test).
    `members` says which applies.
    """
    return compare(database, principal, arm, metric or METRICS, window, baseline)


@router.get("/figure.{form}", response_class=Response, responses=FIGURE, summary="Draw a comparison")
async def read_comparison_figure(  # noqa: PLR0913, PLR0917 - what can be asked for
    request: Request,
    look: Looked,
    principal: Reader,
    database: Store,
    form: Form,
    arm: Wanted,
    metric: Drawn = None,
    x: X = "round",
    points: Points = 1_000,
) -> Response:
    """Draw the curves of arms of any experiments."""

    def work() -> Response:
        found, chosen = drawable(partial(compare, database, principal, arm), metric, points, x)
        return picture(request, found, chosen, x, form, look)

    return await answered(request, principal, form, look, work)
