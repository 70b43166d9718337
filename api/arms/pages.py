"""`/arms`: the table of arms of all experiments, and its rows, which the page of an experiment shows,
too.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from api.arms import filters
from api.arms.routes import FilterText
from api.arms.service import Fields, fields_of
from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, DatabaseDep
from api.web.rendering import HEADERS, page
from fedcore.platform.store import arms, experiments
from fedcore.platform.store.arms import ArmEntry, ArmFilter, MeasureFigure, SeedFigures
from fedcore.statistics import summary

MOST_ROWS = 10_000
"""Arms of a table: as many as an experiment can have."""
QUANTILES = 200
"""Student's t quantiles that the page gets; beyond, they differ in the third digit only."""

router = APIRouter(prefix="/arms", include_in_schema=False)

OneExperiment = Annotated[str | None, Query(max_length=40, pattern=NO_NUL)]


@router.get("")
def read_page(request: Request, _principal: Reader) -> Response:
    """Return the page; its script asks for the rows."""
    return page(request, "arms.html", arms_of=None)


@router.get("/rows")
def read_rows(
    principal: Reader,
    database: DatabaseDep,
    experiment: OneExperiment = None,
    filter: FilterText = None,  # noqa: A002
) -> Response:
    """Return the newest arms with values of each run, whose names are left out because there are many.

    Means and intervals over seeds and groups are computed by the page, with the quantiles.
    """
    fields = fields_of(None)
    condition = None if filter is None else filters.condition_of(filter)
    with database.reading() as session:
        if experiment is not None:
            experiments.find(session, experiment, principal.sees)
        wanted = ArmFilter(principal.sees, None if experiment is None else [experiment], condition)
        found = arms.page(session, wanted, fields.figures, limit=MOST_ROWS)
    return JSONResponse(
        {
            "metrics": [
                {"name": metric.name, "better": metric.best and _BETTER[metric.best.which]}
                for metric in fields.metrics
            ],
            "experiments": {
                entry.experiment_id: {"name": entry.experiment_name, "settings": entry.common}
                for entry in found.items
            },
            "arms": [_arm(entry, fields) for entry in found.items],
            "more": found.next is not None,
            "quantiles": [summary.students_quantile(freedom) for freedom in range(1, QUANTILES + 1)],
        },
        headers=HEADERS,
    )


_BETTER = {"low": "min", "high": "max"}


@router.get("/matching")
def read_matching(
    principal: Reader,
    database: DatabaseDep,
    filter: FilterText,  # noqa: A002
    experiment: OneExperiment = None,
) -> Response:
    """Return which arms fulfil a condition: a page that has the rows needs no more."""
    condition = filters.condition_of(filter or "")
    with database.reading() as session:
        wanted = ArmFilter(principal.sees, None if experiment is None else [experiment], condition)
        return JSONResponse(arms.places(session, wanted), headers=HEADERS)


def _arm(entry: ArmEntry, fields: Fields) -> dict[str, Any]:
    return {
        "experiment": entry.experiment_id,
        "arm": entry.arm,
        "name": entry.name,
        "status": entry.status,
        "settings": entry.own,
        "seeds": [_seed(one, fields) for one in entry.seeds],
    }


def _seed(one: SeedFigures, fields: Fields) -> list[Any]:
    figures = [_value(one, figure) for metric in fields.metrics for figure in (metric.best, metric.final)]
    return [one.run_id, one.seed, one.status, one.megabytes_sent, one.seconds, *figures]


def _value(one: SeedFigures, figure: MeasureFigure | None) -> float | None:
    return None if figure is None else one.figures[figure]
