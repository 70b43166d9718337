"""From the rows of an experiment to its results: figures over seeds, differences to a baseline, curves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Literal, NamedTuple, get_args

from api.schemas import ArmResult, Curve, Difference, Estimate, MetricResult, Results
from fedcore import significance, summary
from fedcore.spec.evaluation import ScalarMeasure
from fedcore.status import Status, StopReason
from fedcore.store.rounds import Series
from fedcore.store.tables import ExperimentRecord, RunRecord

Metric = Literal[ScalarMeasure, "objective", "suboptimality", "distance"]
METRICS: tuple[Metric, ...] = get_args(Metric)
COLUMNS = (*METRICS, "local_steps", "bytes_up", "bytes_down", "seconds", "simulated_seconds")
"""What `results_of` wants of each round."""
MEGABYTE = 1e6


def results_of(
    experiment: ExperimentRecord, runs: Iterable[RunRecord], series: Mapping[str, Series], points: int, baseline: int = 0
) -> Results:
    """The results of an experiment from its `runs`, in order of arms, and the `COLUMNS` of each; curves thinned to `points`.

    Differences are to the arm with the index `baseline`.
    """
    arms = [[_Run(run, series.get(run.id, _EMPTY)) for run in members] for _, members in groupby(runs, key=lambda run: run.arm)]
    metrics = {metric: _compared(arms, baseline, metric) for metric in METRICS}
    return Results(
        experiment_id=experiment.id,
        name=experiment.name,
        status=experiment.status,
        confidence=summary.CONFIDENCE,
        level=significance.LEVEL,
        baseline=baseline,
        arms=[_arm(arm, {metric: of_arms[index] for metric, of_arms in metrics.items()}, points) for index, arm in enumerate(arms)],
    )


_EMPTY = Series([], {name: [] for name in COLUMNS})


@dataclass(frozen=True, slots=True)
class _Run:
    record: RunRecord
    series: Series

    @property
    def whole(self) -> bool:
        """Whether it has ended well, and no search ended it before its time."""
        return self.record.status is Status.SUCCEEDED and self.record.stop_reason is not StopReason.RUNG

    def best(self, metric: str) -> float | None:
        return summary.best(metric, self.series.values[metric])

    def final(self, metric: str) -> float | None:
        return summary.final(self.series.values[metric], diverged=self.record.diverged_round is not None)

    def total(self, column: str) -> float:
        return sum(value or 0 for value in self.series.values[column])

    def simulated_seconds(self) -> float | None:
        """The last that is known of the simulated clock."""
        return summary.final(self.series.values["simulated_seconds"], diverged=False)

    def megabytes(self) -> list[float]:
        """Megabytes sent up to each round."""
        up, down = self.series.values["bytes_up"], self.series.values["bytes_down"]
        return list(accumulate(((sent or 0) + (received or 0)) / MEGABYTE for sent, received in zip(up, down, strict=True)))


_Figure = Callable[[_Run], float | None]


def _arm(arm: Sequence[_Run], metrics: Mapping[str, MetricResult], points: int) -> ArmResult:
    first, started = arm[0].record, [run for run in arm if run.series.rounds]
    curves = {metric: _curve(started, metric, points) for metric in METRICS}
    measured = {metric: curve for metric, curve in curves.items() if curve.rounds}
    return ArmResult(
        index=first.arm,
        name=first.arm_name,
        settings=first.settings,
        seeds=[run.record.seed for run in started],
        runs=Counter(run.record.status for run in arm),
        diverged=sum(run.record.diverged_round is not None for run in arm),
        stopped=sum(run.record.stop_reason is not None for run in arm),
        rounds_done=sum(run.record.done for run in arm),
        local_steps=_estimate(started, lambda run: run.total("local_steps")),
        megabytes_up=_estimate(started, lambda run: run.total("bytes_up") / MEGABYTE),
        megabytes_down=_estimate(started, lambda run: run.total("bytes_down") / MEGABYTE),
        megabytes_sent=_estimate(started, lambda run: run.megabytes()[-1]),
        seconds=_estimate(started, lambda run: run.total("seconds")),
        simulated_seconds=_estimate(started, _Run.simulated_seconds),
        metrics={metric: metrics[metric] for metric in measured},
        curves=measured,
    )


def _compared(arms: Sequence[Sequence[_Run]], baseline: int, metric: str) -> list[MetricResult]:
    """What each arm has of a metric, beside what the baseline has."""
    found: list[dict[str, Estimate | None]] = [{} for _ in arms]
    for name, figure in _FIGURES.items():
        by_seed = [_by_seed(arm, partial(figure, metric=metric)) for arm in arms]
        whole = [all(run.whole for run in arm) and len(values) == len(arm) for arm, values in zip(arms, by_seed, strict=True)]
        comparisons = significance.compare(by_seed, baseline, whole, summary.BETTER.get(metric))
        for fields, values, comparison in zip(found, by_seed, comparisons, strict=True):
            fields[name] = _answer(summary.estimate(list(values.values())))
            fields[f"{name}_difference"] = None if comparison is None else _difference(comparison)
    return [MetricResult.model_validate(fields) for fields in found]


_FIGURES: Mapping[str, Callable[..., float | None]] = {"best": _Run.best, "final": _Run.final}
"""What is read off a run's values of a metric."""


def _difference(comparison: significance.Comparison) -> Difference:
    tests = {name: value for name, value in comparison._asdict().items() if name != "difference"}
    return Difference(**comparison.difference._asdict(), **tests)


def _estimate(runs: Iterable[_Run], figure: _Figure) -> Estimate | None:
    return _answer(summary.estimate(list(_by_seed(runs, figure).values())))


def _by_seed(runs: Iterable[_Run], figure: _Figure) -> dict[int, float]:
    figures = ((run.record.seed, figure(run)) for run in runs)
    return {seed: value for seed, value in figures if value is not None}


def _answer(estimate: summary.Estimate | None) -> Estimate | None:
    return None if estimate is None else Estimate(**estimate._asdict())


def _curve(runs: Iterable[_Run], metric: str, points: int) -> Curve:
    """The mean over the runs that have a value, with the megabytes those runs had sent and where their clocks stood."""
    entries: dict[int, list[_Point]] = defaultdict(list)
    for run in runs:
        values, clock = run.series.values[metric], run.series.values["simulated_seconds"]
        for round, value, megabytes, simulated in zip(run.series.rounds, values, run.megabytes(), clock, strict=True):
            if value is not None:
                entries[round].append(_Point(value, megabytes, simulated))
    rounds = _thinned(sorted(entries), points)
    moments = [summary.moments([point.value for point in entries[round]]) for round in rounds]
    return Curve(
        rounds=rounds,
        megabytes=[summary.moments([point.megabytes for point in entries[round]])[0] for round in rounds],
        simulated_seconds=[_mean(point.simulated_seconds for point in entries[round]) for round in rounds],
        mean=[mean for mean, _ in moments],
        std=[std for _, std in moments],
        n=[len(entries[round]) for round in rounds],
    )


class _Point(NamedTuple):
    value: float
    megabytes: float
    simulated_seconds: float | None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return summary.moments(known)[0] if known else None


def _thinned(rounds: list[int], points: int) -> list[int]:
    """At most `points` of them, evenly spread, the first and the last among them."""
    if len(rounds) <= points:
        return rounds
    return [rounds[index * (len(rounds) - 1) // (points - 1)] for index in range(points)]
