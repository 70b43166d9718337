"""Statistics of a run's curve, for judging a claim about it. Standard library only."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple

from fedcore.statistics.summary import BETTER, moments

Statistic = Literal["final", "best", "mean", "tail", "fluctuation", "rounds_to"]
TAIL = 0.1
"""The share of the points at the end that `tail` is taken over."""


class Trajectory(NamedTuple):
    """One run's values of one metric, by ascending round."""

    rounds: Sequence[int]
    values: Sequence[float]
    diverged: bool
    """True if the run ended because its model was no longer finite."""


def read(statistic: Statistic, metric: str, trajectory: Trajectory, target: float | None = None) -> float:
    """Return the statistic of a run's metric.

    For a run that diverged or has no values, the worst possible value.

    `final` is the last value; `best` the best of all; `mean` the mean over all; `tail` the mean
    over the last tenth; `fluctuation` the sum of all steps for the worse; `rounds_to` the first
    round that reaches `target`, infinite if none does.
    """
    worst = worst_of(metric)
    if statistic == "rounds_to":
        assert target is not None
        return _rounds_to(trajectory, target, falling=worst > 0)
    if not trajectory.values or (trajectory.diverged and statistic != "best"):
        return inf if statistic == "fluctuation" else worst
    if statistic == "fluctuation":
        return _fluctuation(trajectory.values, falling=worst > 0)
    return _PLAIN[statistic](metric, trajectory.values)


def worst_of(metric: str) -> float:
    """The worst value of the metric: minus infinity where higher is better, else infinity."""
    return -inf if BETTER.get(metric, min) is max else inf


def _fluctuation(values: Sequence[float], *, falling: bool) -> float:
    steps = (later - earlier if falling else earlier - later for earlier, later in pairwise(values))
    return sum(max(step, 0.0) for step in steps)


def _rounds_to(trajectory: Trajectory, target: float, *, falling: bool) -> float:
    reached = (
        round
        for round, value in zip(trajectory.rounds, trajectory.values, strict=True)
        if (value <= target if falling else value >= target)
    )
    return next(reached, inf)


def _tail(_metric: str, values: Sequence[float]) -> float:
    return moments(values[-max(1, round(TAIL * len(values))) :])[0]


_PLAIN: Mapping[str, Callable[[str, Sequence[float]], float]] = {
    "final": lambda _, values: values[-1],
    "best": lambda metric, values: BETTER.get(metric, min)(values),
    "mean": lambda _, values: moments(values)[0],
    "tail": _tail,
}
