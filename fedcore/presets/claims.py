"""A publication's claims about a figure or a table, in a form that results can be tested against."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedcore.block import Block, Finite
from fedcore.presets.curve_statistics import Statistic, Trajectory, read

Relation = Literal["below", "above", "near"]
Rows = Mapping[str, Mapping[int, Mapping[str, Trajectory]]]
"""Results by arm, seed and metric."""


class ClaimComparison(Block):
    """One inequality between two arms, or between an arm and a number, in the mean over the
    seeds.
    """

    metric: str
    """As a row or a result names it."""
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
    """All of them must hold."""
    fails_in: tuple[str, ...] = ()
    """The presets in which it did not come out here."""
    because: str | None = None
    """Why, as far as it was found out."""

    @model_validator(mode="after")
    def _is_explained(self) -> Self:
        if bool(self.fails_in) != (self.because is not None):
            raise ValueError("`because` goes with `fails_in`: say why it does not come out")
        return self


class Sides(NamedTuple):
    """A comparison with its results."""

    comparison: ClaimComparison
    left: float
    """The arm's statistic, mean over its seeds; infinite where some run of it has none."""
    right: float
    """The other side's, without the factor."""
    holds: bool
    seeds: int
    """Number of seeds available on both sides."""
    seeds_holding: int
    """Number of these seeds for which the comparison holds individually."""


class ClaimVerdict(NamedTuple):
    """A claim with its results."""

    claim: PublishedClaim
    holds: bool | None
    """None while an arm of it has no results."""
    sides: tuple[Sides, ...]


def judge(claim: PublishedClaim, rows: Rows) -> ClaimVerdict:
    """Hold `claim` against the results; undecided while one of its arms has none."""
    if any(not rows.get(arm) for comparison in claim.comparisons for arm in comparison.arms):
        return ClaimVerdict(claim, None, ())
    sides = tuple(_sides(comparison, rows) for comparison in claim.comparisons)
    return ClaimVerdict(claim, all(side.holds for side in sides), sides)


def _sides(comparison: ClaimComparison, rows: Rows) -> Sides:
    left = _by_seed(comparison, comparison.arm, rows)
    right = (
        _by_seed(comparison, comparison.than, rows)
        if isinstance(comparison.than, str)
        else dict.fromkeys(left, comparison.than)
    )
    shared = left.keys() & right.keys()
    means = _mean(left), _mean(right)
    holding = sum(_holds(comparison, left[seed], right[seed]) for seed in shared)
    return Sides(comparison, *means, _holds(comparison, *means), len(shared), holding)


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
