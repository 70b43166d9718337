"""Arms as answered: settings and metrics that were asked for, with statistics over the seeds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedcore.platform.store.arms import ArmEntry, Column, MeasureFigure, SeedFigures, Setting
from fedcore.statistics import summary
from fedcore.statistics.summary import HEADLINES, better_of
from fedq.schemas import ArmFigures, ArmRow, ArmSeed, Estimate


class Metric(NamedTuple):
    """A metric of a table."""

    name: str
    best: MeasureFigure | None
    """None for a metric without a direction."""
    final: MeasureFigure


class Fields(NamedTuple):
    """Settings and metrics of a table."""

    settings: frozenset[str] | None
    """Settings by dotted path; None: all."""
    metrics: Sequence[Metric]

    @property
    def figures(self) -> list[MeasureFigure]:
        """The figures of the metrics."""
        return [figure for metric in self.metrics for figure in (metric.best, metric.final) if figure]


def fields_of(columns: Sequence[Column] | None) -> Fields:
    """Return the settings and metrics among these columns; None: all settings and the headline metrics."""
    if columns is None:
        return Fields(None, [metric_of(name) for name in HEADLINES])
    names = dict.fromkeys(column.measure for column in columns if isinstance(column, MeasureFigure))
    settings = frozenset(column.path for column in columns if isinstance(column, Setting))
    return Fields(settings, [metric_of(name) for name in names])


def metric_of(name: str) -> Metric:
    """Return the figures of a metric."""
    return Metric(name, best_figure(name), MeasureFigure(name, "final"))


def best_figure(name: str) -> MeasureFigure | None:
    """Return the best value of a metric; None for a metric without a direction."""
    better = better_of(name)
    return None if better is None else MeasureFigure(name, "low" if better is min else "high")


def arm_answer(entry: ArmEntry, fields: Fields) -> ArmRow:
    """Return an arm with these fields."""

    def over_seeds(value: Callable[[SeedFigures], float | None]) -> Estimate | None:
        found = summary.estimate([figure for one in entry.seeds if (figure := value(one)) is not None])
        return found and Estimate(**found._asdict())

    def figure(wanted: MeasureFigure | None) -> Estimate | None:
        return wanted and over_seeds(lambda one: one.figures[wanted])

    settings = fields.settings
    return ArmRow(
        experiment_id=entry.experiment_id,
        experiment_name=entry.experiment_name,
        created_at=entry.created_at,
        arm=entry.arm,
        name=entry.name,
        status=entry.status,
        seeds=[_seed(one, fields) for one in entry.seeds],
        rounds_done=entry.rounds_done,
        rounds_total=entry.rounds_total,
        diverged=entry.diverged,
        stopped=entry.stopped,
        seconds=over_seeds(lambda one: one.seconds),
        megabytes_sent=over_seeds(lambda one: one.megabytes_sent),
        parameters={
            path: value for path, value in entry.parameters.items() if settings is None or path in settings
        },
        metrics={
            metric.name: ArmFigures(best=figure(metric.best), final=figure(metric.final))
            for metric in fields.metrics
        },
    )


def _seed(one: SeedFigures, fields: Fields) -> ArmSeed:
    return ArmSeed(
        run_id=one.run_id,
        seed=one.seed,
        status=one.status,
        metrics={
            metric.name: {
                "best": None if metric.best is None else one.figures[metric.best],
                "final": one.figures[metric.final],
            }
            for metric in fields.metrics
        },
    )
