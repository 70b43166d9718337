"""Results of arms from the rows of their runs: statistics over seeds, differences to a baseline,
curves.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Protocol, TypeVar, get_args

from fedcore.algorithms import ALGORITHMS
from fedcore.families import Names
from fedcore.measures import explain_list
from fedcore.platform.status import Status
from fedcore.simulation.report import StopReason
from fedcore.spec.evaluation import ExactFigure, scalar_measures
from fedcore.statistics import summary
from fedcore.statistics.poor_runs import RunWarning, summarise_warnings
from fedcore.statistics.series import Series
from fedq.results.best_arms import best_arms
from fedq.results.curves import MEGABYTE, Window, area, average_curve, megabytes
from fedq.results.presentation import ComparedFigure
from fedq.schemas import ArmResult, BestArms, Estimate, MetricResult


def metric_names() -> tuple[str, ...]:
    """The metrics that figures can show, metrics of installed packages included."""
    return (*scalar_measures(), *get_args(ExactFigure), "epsilon")


Metric = Annotated[str, Names(metric_names, explain_list)]
TOTALS = ("local_steps", "bytes_up", "bytes_down", "simulated_seconds", "epsilon", *summary.SELECTORS)
"""Columns of each round that `arms_of` needs besides the metrics."""


class MeasuredRun(Protocol):
    """A run, of the database or of a folder."""

    @property
    def id(self) -> str: ...
    @property
    def arm(self) -> int: ...
    @property
    def arm_name(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def seed(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def diverged_round(self) -> int | None: ...
    @property
    def divergence(self) -> str | None: ...
    @property
    def warning(self) -> RunWarning | None: ...
    @property
    def stop_reason(self) -> StopReason | None: ...
    @property
    def done(self) -> int: ...
    @property
    def seconds(self) -> float: ...


Measured = TypeVar("Measured", bound=MeasuredRun)


def by_arm(runs: Iterable[Measured]) -> dict[int, list[Measured]]:
    """Return the runs by arm, in order of the arms; runs of seeds added later come last."""
    ordered = sorted(runs, key=lambda run: run.arm)
    return {arm: list(members) for arm, members in groupby(ordered, key=lambda run: run.arm)}


def arms_of(
    arms: Sequence[Sequence[MeasuredRun]],
    series: Mapping[str, Series],
    metrics: Collection[str],
    window: Window,
    starts: Sequence[int] | None = None,
    references: Collection[int] = (),
) -> list[ArmResult]:
    """Return the results of each arm, given by its runs. `starts` are first rounds of curves, where they
    begin after the window; None: 1. `references` as of `references_among`.
    """
    held = [[_Run(run, series.get(run.id)) for run in members] for members in arms]
    # Most metrics are those of other problems. Of thousands of arms each would take tenths of seconds.
    known = [metric for metric in metrics if any(one.has(metric) for one in series.values())]
    return [
        _arm(
            arm,
            known,
            window,
            1 if starts is None else starts[place],
            reference=place in references,
        )
        for place, arm in enumerate(held)
    ]


def best_arms_of(  # noqa: PLR0913 - what a comparison depends on
    arms: Sequence[Sequence[MeasuredRun]],
    series: Mapping[str, Series],
    metrics: Collection[str],
    by: ComparedFigure = "final",
    baseline: int | None = None,
    comparable: Sequence[bool] | None = None,
    names: Sequence[str] | None = None,
    *,
    confirmed: bool = False,
    references: Collection[int] = (),
) -> BestArms | None:
    """Return the arms, given by their runs, that may be the best by a figure of a metric: the first of
    `metrics`, or the most telling if they are all that there are. `comparable` says which share data set
    and seeds with the `baseline`, or the first one; None: as their settings say. `names` are those of the
    arms, if not those of their runs. `confirmed` as of `best_arms`, `references` of `references_among`.

    None for a cost of reaching a target: `fedq.results.targets.with_target` compares these.

    Runs that have not ended, or were stopped at a rung, have no figure.
    """
    known = [metric for metric in metrics if any(one.has(metric) for one in series.values())]
    if not known or by not in _FIGURES:
        return None
    metric = summary.choose_headline(known) if len(metrics) == len(metric_names()) else known[0]
    held = [[_Run(run, series.get(run.id)) for run in members] for members in arms]
    figures = [
        _by_seed([run for run in members if run.whole], partial(_FIGURES[by], metric=metric))
        for members in held
    ]
    alike = comparable or have_data_of([members[0].settings for members in arms], baseline or 0)
    return best_arms(
        names or [members[0].arm_name for members in arms],
        comparable_only(figures, alike),
        [[run.seed for run in members if run.diverged_round is not None] for members in arms],
        metric,
        by,
        baseline,
        confirmed=confirmed,
        references=references,
    )


def references_among(kinds: Sequence[object]) -> set[int]:
    """Return the places of lines of reference among arms, given by the kinds of their algorithms; none if no
    arm is a method.
    """
    known = [ALGORITHMS.find(kind) if isinstance(kind, str) else None for kind in kinds]
    found = {place for place, member in enumerate(known) if member is not None and member.reference}
    return found if len(found) < len(known) else set()


def has_ended(run: MeasuredRun) -> bool:
    """Return True if the run succeeded, and was not stopped by a search for its results."""
    return run.status is Status.SUCCEEDED and run.stop_reason is not StopReason.RUNG


def have_data_of(settings: Sequence[Mapping[str, Any]], baseline: int) -> list[bool]:
    """Return which arms of an experiment, given by their settings, have the data set of the one at
    `baseline`. Augmentation changes no test sample.
    """

    def data(of_arm: Mapping[str, Any]) -> dict[str, Any]:
        found = {path: value for path, value in of_arm.items() if path.startswith("problem.dataset")}
        if isinstance(problem := of_arm.get("problem"), dict):
            found["problem.dataset"] = problem.get("dataset")
        found.pop("problem.dataset.augmentation", None)
        if isinstance(whole := found.get("problem.dataset"), dict):
            found["problem.dataset"] = {
                name: value for name, value in whole.items() if name != "augmentation"
            }
        return found

    return [data(of_arm) == data(settings[baseline]) for of_arm in settings]


@dataclass(frozen=True, slots=True)
class _Run:
    record: MeasuredRun
    series: Series | None
    """Curves of the run; None if it has no rows."""

    @property
    def whole(self) -> bool:
        """True if it has ended, and did not diverge."""
        return has_ended(self.record) and self.record.diverged_round is None

    def best(self, metric: str) -> float | None:
        return None if self.series is None else self.series.best(metric)

    def final(self, metric: str) -> float | None:
        return self._last(metric, diverged=self.record.diverged_round is not None)

    def area(self, metric: str) -> float | None:
        return (
            None
            if self.series is None or self.record.diverged_round is not None
            else area(self.series, metric)
        )

    def total(self, column: str) -> float:
        return 0.0 if self.series is None else self.series.total(column)

    def simulated_seconds(self) -> float | None:
        """Return the last known simulated time."""
        return self._last("simulated_seconds", diverged=False)

    def megabytes(self) -> float | None:
        """Return the megabytes sent in both directions."""
        return None if self.series is None else float(megabytes(self.series)[-1])

    def _last(self, column: str, *, diverged: bool) -> float | None:
        return None if self.series is None else summary.final(self.series.ending(column), diverged=diverged)


_Figure = Callable[[_Run], float | None]


def _arm(
    arm: Sequence[_Run], metrics: Collection[str], window: Window, start: int, *, reference: bool
) -> ArmResult:
    first, started = arm[0].record, [run for run in arm if run.series is not None]
    window = window._replace(first=max(window.first, start))
    curves = {
        metric: average_curve([run.series for run in arm if run.series is not None], metric, window)
        for metric in metrics
    }
    measured = {metric: found for metric, found in curves.items() if found is not None}
    return ArmResult(
        index=first.arm,
        name=first.arm_name,
        reference=reference,
        settings=first.settings,
        seeds=[run.record.seed for run in started],
        runs=Counter(run.record.status for run in arm),
        diverged=sum(run.record.diverged_round is not None for run in arm),
        divergence=next((run.record.divergence for run in arm if run.record.divergence), None),
        warning=summarise_warnings(
            Counter(run.record.warning.kind for run in arm if run.record.warning), len(arm)
        ),
        stopped=sum(run.record.stop_reason is not None for run in arm),
        rounds_done=sum(run.record.done for run in arm),
        local_steps=_estimate(started, lambda run: run.total("local_steps")),
        megabytes_up=_estimate(started, lambda run: run.total("bytes_up") / MEGABYTE),
        megabytes_down=_estimate(started, lambda run: run.total("bytes_down") / MEGABYTE),
        megabytes_sent=_estimate(started, _Run.megabytes),
        seconds=_estimate(started, lambda run: run.record.seconds),
        simulated_seconds=_estimate(started, _Run.simulated_seconds),
        metrics={metric: _metric(arm, metric) for metric in measured},
        curves=measured,
        curves_from=start,
    )


def _metric(arm: Sequence[_Run], metric: str) -> MetricResult:
    """Return the figures of a metric of an arm."""
    found = {name: _estimate(arm, partial(figure, metric=metric)) for name, figure in _FIGURES.items()}
    return MetricResult.model_validate(found)


_FIGURES: Mapping[str, Callable[..., float | None]] = {
    "best": _Run.best,
    "final": _Run.final,
    "area": _Run.area,
}
"""Figures that summarise a run's values of a metric."""


def data_sources(provenances: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the data that runs with these provenances have read, each once."""
    return sorted({str(one["data_source"]) for one in provenances if "data_source" in one})


def comparable_only(
    by_seed: Sequence[Mapping[int, float]], comparable: Sequence[bool]
) -> list[Mapping[int, float]]:
    """Return the figures of each arm by seed, none of arms that are not comparable."""
    return [values if same else {} for values, same in zip(by_seed, comparable, strict=True)]


def _estimate(runs: Iterable[_Run], figure: _Figure) -> Estimate | None:
    return estimate_mean(_by_seed(runs, figure))


def _by_seed(runs: Iterable[_Run], figure: _Figure) -> dict[int, float]:
    figures = ((run.record.seed, figure(run)) for run in runs)
    return {seed: value for seed, value in figures if value is not None}


def estimate_mean(values: Mapping[int, float]) -> Estimate | None:
    """Return the mean over seeds with its confidence interval; None if there are no values."""
    found = summary.estimate(list(values.values()))
    return None if found is None else Estimate(**found._asdict())
