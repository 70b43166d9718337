"""`/compare`: arms of any experiments side by side.

What pages with curves are told: the metrics there are to choose from, and which way is better.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypedDict
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, Store
from api.results.compared_arms import gather
from api.results.summaries import METRICS
from api.web.rendering import page
from fedcore.platform.store import experiments
from fedcore.platform.store.experiments import Filter
from fedcore.statistics.summary import BETTER, HEADLINES

EXACT = ("suboptimality", "objective", "distance")
"""Metrics of every problem with a known minimiser."""
UNTESTED = frozenset({"test_loss", "test_accuracy"})
"""Metrics that such a problem lacks."""


class Told(TypedDict):
    """The context of `_curves.html`, beside addresses."""

    metrics: list[str]
    better: Mapping[str, str]
    arms: int


def told(specifications: Collection[Mapping[str, Any]], arms: int) -> Told:
    """Of so many arms of experiments with these specifications.

    Metrics that most of them have come first, then the most telling.
    """
    counts = Counter(metric for specification in specifications for metric in measured(specification))
    metrics = sorted(
        counts,
        key=lambda metric: (
            -counts[metric],
            HEADLINES.index(metric) if metric in HEADLINES else len(HEADLINES),
        ),
    )
    return {
        "metrics": metrics,
        "better": {metric: better.__name__ for metric, better in BETTER.items()},
        "arms": arms,
    }


def measured(specification: Mapping[str, Any]) -> list[str]:
    """The metrics that an experiment asks for."""
    measures = [metric for metric in specification["evaluation"]["measures"] if metric in METRICS]
    if specification["problem"]["dataset"]["kind"] in ("quadratic", "least_squares"):
        return [*EXACT, *(metric for metric in measures if metric not in UNTESTED)]
    return measures


OFFERED = 50
"""Experiments to choose from: the newest."""

router = APIRouter(include_in_schema=False)

Wanted = Annotated[
    list[Annotated[str, Query(max_length=300, pattern=NO_NUL)]],
    Query(alias="arm", max_length=100, default_factory=list),
]


@router.get("/compare")
def read_compare(request: Request, principal: Reader, database: Store, wanted: Wanted) -> Response:
    """Curves and results of the arms that the address names, and what else could be taken in."""
    with database.reading() as session:
        chosen = gather(session, principal, wanted)
        offered = experiments.page(session, Filter(principal.sees), limit=OFFERED).items
        specifications = {one.experiment.id: one.experiment.spec for one in chosen}
    arms = [
        (f"{one.experiment.id}:{one.arm}", one.experiment.name, one.name, one.experiment.id) for one in chosen
    ]
    query = urlencode([("arm", entry) for entry in wanted])
    return page(
        request,
        "compare.html",
        members=arms,
        offered=[(item.id, item.name) for item in offered if item.id not in wanted],
        results=f"/v1/compare?{query}",
        figure=f"/v1/compare/figure.svg?{query}",
        theory=None,
        **told(specifications.values(), len(chosen)),
    )
