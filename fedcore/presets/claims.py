"""A publication's claims about a figure or a table, the statistics of a run's curve that they are
about, and the tests over seeds that they are judged by. Standard library only, but for Student's t.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedcore.block import Block, Finite
from fedcore.statistics.inequalities import ClaimOutcome, p_positive
from fedcore.statistics.summary import LEVEL, better_of, moments

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
    if not trajectory.values or trajectory.diverged:
        return inf if statistic in ("fluctuation", "rounds_to") else worst
    if statistic == "rounds_to":
        assert target is not None
        return _rounds_to(trajectory, target, falling=worst > 0)
    if statistic == "fluctuation":
        return _fluctuation(trajectory.values, falling=worst > 0)
    return _PLAIN[statistic](metric, trajectory.values)


def worst_of(metric: str) -> float:
    """The worst value of the metric: minus infinity where higher is better, else infinity."""
    return -inf if (better_of(metric) or min) is max else inf


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
    "best": lambda metric, values: (better_of(metric) or min)(values),
    "mean": lambda _, values: moments(values)[0],
    "tail": _tail,
}


Relation = Literal["below", "above", "near"]
Rows = Mapping[str, Mapping[int, Mapping[str, Trajectory]]]
"""Results by arm, seed and metric."""


class ClaimComparison(Block):
    """One inequality between two arms, or between an arm and a number; `near` is two."""

    metric: str
    """Name of the metric, as a row or a result has it."""
    statistic: Statistic = "final"
    """Statistic of each run's curve."""
    target: Finite | None = None
    """The value that `rounds_to` has to reach."""
    arm: str
    """The arm of which it is said."""
    relation: Relation
    """How it stands to the other side."""
    than: str | Finite
    """The other side: an arm by its name, or a number, as theory or the publication gives it."""
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Multiplies the other side: `below`, 0.5 means less than half."""
    tolerance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """For `near`: the largest difference, relative to the other side."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.statistic == "rounds_to") != (self.target is not None):
            raise ValueError("`target` goes with `rounds_to`")
        if (self.relation == "near") != (self.tolerance is not None):
            raise ValueError("`tolerance` goes with `near`")
        return self

    @property
    def arms(self) -> list[str]:
        """The arms that it is about."""
        return [self.arm, self.than] if isinstance(self.than, str) else [self.arm]


class PublishedClaim(Block):
    """A sentence of the publication, and what must hold for it to hold."""

    says: str
    """The claim in words."""
    source: str
    """Place in the publication."""
    panels: tuple[str, ...] = ()
    """The panels it is about; all, when there are none."""
    comparisons: Annotated[tuple[ClaimComparison, ...], Field(min_length=1)]
    """Comparisons, each of which must hold."""
    fails_in: tuple[str, ...] = ()
    """The presets in which it does not hold here; where it is not decided, the record says so."""
    because: str | None = None
    """Why it does not hold, or why it may not be decided, as far as it was found out."""

    @model_validator(mode="after")
    def _is_explained(self) -> Self:
        if self.fails_in and self.because is None:
            raise ValueError("`fails_in` requires `because`: say why it does not hold")
        return self


class Sides(NamedTuple):
    """A comparison with its results."""

    comparison: ClaimComparison
    left: float
    """The arm's statistic, mean over its seeds; infinite where some run of it has none."""
    right: float
    """The other side's, without the factor."""
    outcome: ClaimOutcome
    seeds: int
    """Number of seeds available on both sides."""
    seeds_holding: int
    """Number of these seeds for which the comparison holds individually."""


class ClaimVerdict(NamedTuple):
    """A claim with its results."""

    claim: PublishedClaim
    outcome: ClaimOutcome | None
    """None while an arm of it has no results."""
    sides: tuple[Sides, ...]


def judge(claim: PublishedClaim, rows: Rows) -> ClaimVerdict:
    """Test `claim` against the results, paired by seed; no outcome while one of its arms has none.

    It holds if each of its inequalities does by a one-sided test at LEVEL. This needs no correction
    for their number: all must be rejected together (intersection-union test; Berger, Multiparameter
    hypothesis testing and acceptance sampling, Technometrics 1982; two one-sided tests for `near`).
    It does not hold if the contrary of one of m inequalities does at LEVEL / m (Bonferroni).
    """
    if any(not rows.get(arm) for comparison in claim.comparisons for arm in comparison.arms):
        return ClaimVerdict(claim, None, ())
    inequalities = sum(2 if one.relation == "near" else 1 for one in claim.comparisons)
    sides = tuple(_sides(comparison, rows, LEVEL / inequalities) for comparison in claim.comparisons)
    outcomes = {side.outcome for side in sides}
    # Of several, the one that decides: a comparison that fails, then one that is not decided.
    order = (ClaimOutcome.DOES_NOT_HOLD, ClaimOutcome.NOT_DECIDED, ClaimOutcome.HOLDS)
    return ClaimVerdict(claim, min(outcomes, key=order.index), sides)


def _sides(comparison: ClaimComparison, rows: Rows, failing_level: float) -> Sides:
    left = _by_seed(comparison, comparison.arm, rows)
    right = (
        _by_seed(comparison, comparison.than, rows)
        if isinstance(comparison.than, str)
        else dict.fromkeys(left, comparison.than)
    )
    pairs = {seed: (left[seed], right[seed]) for seed in sorted(left.keys() & right.keys())}
    holding = sum(_holds(comparison, *pair) for pair in pairs.values())
    if _is_fixed(comparison, rows, list(pairs)):
        outcome = ClaimOutcome.HOLDS if holding else ClaimOutcome.DOES_NOT_HOLD
    else:
        outcome = _outcome(comparison, list(pairs.values()), failing_level)
    return Sides(comparison, _mean(left), _mean(right), outcome, len(pairs), holding)


def _is_fixed(comparison: ClaimComparison, rows: Rows, seeds: Sequence[int]) -> bool:
    """True if nothing is random: with another seed, each arm has the same curve."""
    return len(seeds) > 1 and all(
        rows[arm][seed].get(comparison.metric) == rows[arm][seeds[0]].get(comparison.metric)
        for arm in comparison.arms
        for seed in seeds
    )


def _outcome(
    comparison: ClaimComparison, pairs: Sequence[tuple[float, float]], failing_level: float
) -> ClaimOutcome:
    ordinal = comparison.statistic == "rounds_to"
    inequalities = list(zip(*(_margins(comparison, *pair) for pair in pairs), strict=True))
    if inequalities and max(p_positive(margins, ordinal=ordinal) for margins in inequalities) <= LEVEL:
        return ClaimOutcome.HOLDS
    contraries = [[-margin for margin in margins] for margins in inequalities]
    if any(p_positive(margins, ordinal=ordinal) <= failing_level for margins in contraries):
        return ClaimOutcome.DOES_NOT_HOLD
    return ClaimOutcome.NOT_DECIDED


def _margins(comparison: ClaimComparison, left: float, right: float) -> tuple[float, ...]:
    """Margin by which each inequality of the comparison holds for one seed; negative where not."""
    other = comparison.factor * right
    match comparison.relation:
        case "below":
            return (other - left,)
        case "above":
            return (left - other,)
        case "near":
            assert comparison.tolerance is not None
            ends = (1 - comparison.tolerance) * other, (1 + comparison.tolerance) * other
            return left - min(ends), max(ends) - left


def _by_seed(comparison: ClaimComparison, arm: str, rows: Rows) -> dict[int, float]:
    nothing = Trajectory([], [], diverged=True)
    return {
        seed: read(
            comparison.statistic,
            comparison.metric,
            metrics.get(comparison.metric, nothing),
            comparison.target,
        )
        for seed, metrics in rows[arm].items()
    }


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)


def _holds(comparison: ClaimComparison, left: float, right: float) -> bool:
    other = comparison.factor * right
    match comparison.relation:
        case "below":
            return left < other
        case "above":
            return left > other
        case "near":
            assert comparison.tolerance is not None
            return isfinite(left) and abs(left - other) <= comparison.tolerance * abs(other)
