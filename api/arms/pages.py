"""`/arms`: the table of arms of all experiments, and its rows, which the page of an experiment shows,
too.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from api.arms import filters
from api.arms.routes import FilterText
from api.arms.service import fields_of
from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, AppStateDep
from api.web.rendering import HEADERS, page
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, arms, experiments
from fedcore.platform.store.arms import ArmFilter
from fedcore.statistics import summary
from fedcore.statistics.poor_runs import WORDS

MOST_ROWS = 10_000
"""Arms of a table: as many as an experiment can have."""

router = APIRouter(prefix="/arms", include_in_schema=False)

OneExperiment = Annotated[str | None, Query(max_length=40, pattern=NO_NUL)]


@router.get("")
def read_page(request: Request, _principal: Reader) -> Response:
    """Return the page; its script asks for the rows."""
    return page(request, "arms.html", arms_of=None)


@router.get("/rows")
async def read_rows(
    principal: Reader,
    state: AppStateDep,
    experiment: OneExperiment = None,
    filter: FilterText = None,  # noqa: A002
) -> Response:
    """Return the newest arms and their runs by columns; `figures` has those that any run has, and
    `estimates` what they are over the runs of each arm.
    """
    wanted = _wanted(principal, experiment, filter)
    return await state.reading_gate.run(principal.owner, partial(_rows, state.database, wanted))


def _wanted(principal: Principal, experiment: str | None, condition: str | None) -> ArmFilter:
    return ArmFilter(
        principal.sees,
        None if experiment is None else [experiment],
        None if condition is None else filters.condition_of(condition),
    )


def _rows(database: Database, wanted: ArmFilter) -> Response:
    fields = fields_of(None)
    with database.reading() as session:
        for id in wanted.experiments or ():
            experiments.find(session, id, wanted.seen_by)
        found = arms.table(session, wanted, fields.figures, limit=MOST_ROWS)
    names = [
        f"{figure.measure}.{'final' if figure.which == 'final' else 'best'}" for figure in fields.figures
    ]
    figures = {"megabytes_sent": found.megabytes_sent, "seconds": found.seconds}
    figures |= zip(names, found.figures, strict=True)
    figures = {name: values for name, values in figures.items() if any(value is not None for value in values)}
    return JSONResponse(
        {
            "metrics": [
                {"name": metric.name, "better": metric.best and _BETTER[metric.best.which]}
                for metric in fields.metrics
            ],
            "experiments": found.experiments,
            "arms": found.arms,
            "shared": found.shared,
            "settings": found.settings,
            "runs": found.runs,
            "figures": figures,
            "estimates": {name: _estimates(values, found.arms["runs"]) for name, values in figures.items()},
            "warnings": WORDS,
            "more": found.more,
        },
        headers=HEADERS,
    )


def _estimates(values: Sequence[float | None], runs: Sequence[int]) -> dict[str, list[float | None]]:
    """Return mean, deviation and interval of the values of each arm by columns; `runs` counts its runs."""
    ordered = iter(values)
    arms = [
        summary.estimate([value for value in islice(ordered, count) if value is not None]) for count in runs
    ]
    return {
        name: [None if arm is None else getattr(arm, name) for arm in arms]
        for name in ("mean", "std", "low", "high")
    }


_BETTER = {"low": "min", "high": "max"}


@router.get("/matching")
async def read_matching(
    principal: Reader,
    state: AppStateDep,
    filter: FilterText,  # noqa: A002
    experiment: OneExperiment = None,
) -> Response:
    """Return the arms that fulfil a condition, by experiment: a page that has the rows needs no more."""
    wanted = _wanted(principal, experiment, filter or "")

    def work() -> Response:
        with state.database.reading() as session:
            return JSONResponse(arms.matching(session, wanted), headers=HEADERS)

    return await state.reading_gate.run(principal.owner, work)
