"""`/arms`: the table of arms of all experiments, and its rows, which the page of an experiment shows,
too.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from api.arms import filters
from api.arms.routes import FilterText
from api.arms.service import fields_of
from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, AppStateDep
from api.web.rendering import HEADERS, render_page
from fedcore.platform.access import Principal
from fedcore.platform.store import Database, arms, experiments
from fedcore.platform.store.arms import ArmFilter, MeasureFigure, SeedFigures
from fedcore.statistics import summary
from fedcore.statistics.importance import SettingShare, distinguishing_settings, rank_settings
from fedcore.statistics.poor_runs import WORDS

MOST_ROWS = 10_000
"""Arms of a table: as many as an experiment can have."""

router = APIRouter(prefix="/arms", include_in_schema=False)

FEW_FIGURES = 2
"""Figures of a group that are shown."""

OneExperiment = Annotated[str | None, Query(max_length=40, pattern=NO_NUL)]


@router.get("")
def read_page(request: Request, _principal: Reader) -> Response:
    """Return the page; its script asks for the rows."""
    return render_page(request, "arms.html", arms_of=None)


@router.get("/rows")
async def read_rows(
    principal: Reader,
    state: AppStateDep,
    experiment: OneExperiment = None,
    filter: FilterText = None,  # noqa: A002
) -> Response:
    """Return the newest arms and their runs by columns; `figures` has the figures that any run has,
    and `estimates` their means and intervals over the runs of each arm.

    For one experiment, `importance` has how much its settings explain of each figure.
    """
    wanted = _wanted(principal, experiment, filter)
    return await state.reading_gate.run(principal.owner, partial(_rows, state.database, wanted))


def _wanted(principal: Principal, experiment: str | None, condition: str | None) -> ArmFilter:
    return ArmFilter(
        principal.sees,
        None if experiment is None else [experiment],
        None if condition is None else filters.condition_of(condition),
    )


def _rows(database: Database, filters: ArmFilter) -> Response:
    fields = fields_of(None)
    with database.reading() as session:
        for id in filters.experiments or ():
            experiments.find(session, id, filters.seen_by)
        found = arms.table(session, filters, fields.figures, limit=MOST_ROWS)
    figures = dict(zip(map(_name, fields.figures), found.figures, strict=True))
    figures |= {"megabytes_sent": found.megabytes_sent, "seconds": found.seconds}
    figures = {name: values for name, values in figures.items() if any(value is not None for value in values)}
    estimates = {name: _estimates(values, found.arms["runs"]) for name, values in figures.items()}
    telling = distinguishing_settings(found.settings)
    compared = {} if filters.experiments is None else {path: found.settings[path] for path in telling}
    metrics = [
        {"name": metric.name, "better": metric.best and _BETTER[metric.best.which]}
        for metric in fields.metrics
    ]
    better = {f"{one['name']}.{which}": one["better"] for one in metrics for which in ("best", "final")}
    better |= dict.fromkeys(("megabytes_sent", "seconds"), "min")
    return JSONResponse(
        {
            "metrics": metrics,
            "experiments": found.experiments,
            "arms": found.arms,
            "shared": found.shared,
            "settings": found.settings,
            "runs": found.runs,
            "figures": figures,
            "estimates": estimates,
            "telling": telling,
            "importance": {
                name: [one._asdict() for one in _ranked(compared, found["mean"], better.get(name))]
                for name, found in estimates.items()
            },
            "warnings": WORDS,
            "more": found.more,
        },
        headers=HEADERS,
    )


def _ranked(
    settings: Mapping[str, Sequence[Hashable]], figures: Sequence[float | None], better: str | None
) -> list[SettingShare]:
    """Return the settings by importance; none for a metric that has no better and worse."""
    return rank_settings(settings, figures, higher_is_better=better == "max") if better else []


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


def _name(figure: MeasureFigure) -> str:
    """Name of a figure in columns."""
    return f"{figure.measure}.{'final' if figure.which == 'final' else 'best'}"


class WantedMeans(BaseModel):
    """Groups of arms and the figures whose means are wanted."""

    figures: list[str] = Field(max_length=FEW_FIGURES)
    groups: list[dict[str, list[Annotated[int, Field(ge=0, lt=MOST_ROWS)]]]] = Field(max_length=MOST_ROWS)
    """Numbers of arms, by experiment."""


@router.post("/means")
async def read_means(principal: Reader, state: AppStateDep, wanted: WantedMeans) -> Response:
    """Return mean and deviation of figures over all runs of each group; null without a value."""
    return await state.reading_gate.run(principal.owner, partial(_means, state.database, principal, wanted))


def _means(database: Database, principal: Principal, wanted: WantedMeans) -> Response:
    known = {_name(figure): figure for figure in fields_of(None).figures}
    figures = [known[name] for name in wanted.figures if name in known]
    numbers: dict[str, set[int]] = {}
    for group in wanted.groups:
        for id, some in group.items():
            numbers.setdefault(id, set()).update(some)
    with database.reading() as session:
        seeds = arms.seeds_of(session, numbers, figures, principal.sees)

    def means(group: dict[str, list[int]]) -> dict[str, dict[str, float | None] | None]:
        runs = [run for id, some in group.items() for arm in some for run in seeds.get((id, arm), ())]
        return {name: _mean([_figure(run, name, known) for run in runs]) for name in wanted.figures}

    return JSONResponse([means(group) for group in wanted.groups], headers=HEADERS)


def _figure(run: SeedFigures, name: str, known: Mapping[str, MeasureFigure]) -> float | None:
    if name in known:
        return run.figures[known[name]]
    return {"megabytes_sent": run.megabytes_sent, "seconds": run.seconds}.get(name)


def _mean(values: Sequence[float | None]) -> dict[str, float | None] | None:
    present = [value for value in values if value is not None]
    return dict(zip(("mean", "std"), summary.moments(present), strict=True)) if present else None


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
