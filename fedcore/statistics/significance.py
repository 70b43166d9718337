"""Test whether arms differ from a baseline by more than chance: paired tests over seeds, corrected
for many arms.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from math import erfc, hypot, inf, isfinite, sqrt
from typing import Any, NamedTuple

from fedcore.statistics.summary import (
    CONFIDENCE,
    MeanInterval,
    estimate,
    moments,
    students_quantile,
    students_tail,
)

LEVEL = round(1 - CONFIDENCE, 9)
"""Level of significance: where the corrected p-value of a test is below it, chance is taken to be
ruled out.
"""
LEAST_PAIRS = 3
"""Minimum number of pairs from which anything is concluded: two say next to nothing of how much
seeds scatter.
"""
EXACT_PAIRS = 50
"""Up to this many pairs the signed-rank test enumerates all signs; beyond, its statistic is
practically normal.
"""
ROUNDING = 1e-12
"""Differences that agree to this share of what was compared agree to rounding."""

Pairs = Sequence[tuple[float, float]]
"""An arm's figure and the baseline's, for each seed that has both."""


class Conclusion(StrEnum):
    """The conclusion about an arm compared with the baseline."""

    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    """It differs, in a metric that has no better and worse."""
    UNCLEAR = "unclear"
    """The difference may be chance."""
    SAME_FOR_ALL = "same_for_all"
    """The difference is the same for every seed: there is no chance to test against."""
    TOO_FEW_SEEDS = "too_few_seeds"
    INCOMPLETE = "incomplete"
    """A run of either arm is not done, failed, diverged, or was stopped at a rung: what there is
    may be a chosen part.
    """


class ArmComparison(NamedTuple):
    """An arm compared with the baseline; the tests are two-sided."""

    difference: MeanInterval
    p: float | None
    """p-value of the paired t-test; None with fewer than LEAST_PAIRS pairs, or where all
    differences are the same.
    """
    p_adjusted: float | None
    """p corrected by Holm for the number of arms that are compared."""
    p_signed_rank: float | None
    """p-value of Wilcoxon's signed-rank test, which asks for no normal distribution; not corrected."""
    verdict: Conclusion


def compare(
    figures: Sequence[Mapping[int, float]],
    baseline: int,
    whole: Sequence[bool],
    better: Callable[..., Any] | None,
    paired: Sequence[bool] | None = None,
) -> list[ArmComparison | None]:
    """Compare each arm's figures, by seed, with the figures of arm `baseline`.

    None for the baseline itself, and for an arm that shares no seed with it.

    `whole` says of each arm whether every run of it has its figure for good; `better` is max or
    min, or None where neither is. `paired` says of each arm whether the same seed means the same
    chance for it and the baseline (None: it does for all); the others are held against it by
    Welch's t-test.
    """
    found = [
        None if arm == baseline else _beside(values, figures[baseline], paired=paired is None or paired[arm])
        for arm, values in enumerate(figures)
    ]
    adjusted = holm([one and one.p for one in found])
    return [
        one
        and one._replace(
            p_adjusted=p,
            verdict=_verdict(one.difference, p, better) if whole[arm] and whole[baseline] else one.verdict,
        )
        for arm, (one, p) in enumerate(zip(found, adjusted, strict=True))
    ]


class Welch(NamedTuple):
    """Two independent samples side by side."""

    difference: MeanInterval
    """Difference of the means; `n` is the smaller sample's, `std` that of the difference of one
    value of each.
    """
    p: float | None
    """None where one of them has fewer than LEAST_PAIRS values, or nothing varies."""


def welch(values: Sequence[float], others: Sequence[float]) -> Welch | None:
    """Welch's t-test: t = (mean - mean') / sqrt(s^2/n + s'^2/n'); None if either has no values.

    The degrees of freedom are Satterthwaite's, rounded down, which errs on the side of chance.
    """
    if not values or not others:
        return None
    (mean, std), (other, spread), n = moments(values), moments(others), min(len(values), len(others))
    apart = mean - other
    if std is None or spread is None:
        return Welch(MeanInterval(n, apart, None, None, None), None)
    errors = std**2 / len(values), spread**2 / len(others)
    error, scale = sqrt(sum(errors)), max(map(abs, [*values, *others]))
    if error <= ROUNDING * scale:
        return Welch(MeanInterval(n, apart, hypot(std, spread), apart, apart), None)
    freedom = int(
        sum(errors) ** 2 / (errors[0] ** 2 / (len(values) - 1) + errors[1] ** 2 / (len(others) - 1))
        + ROUNDING
    )
    reach = students_quantile(freedom) * error
    p = (
        students_tail(apart / error, freedom)
        if n >= LEAST_PAIRS and apart
        else (1.0 if n >= LEAST_PAIRS else None)
    )
    return Welch(MeanInterval(n, apart, hypot(std, spread), apart - reach, apart + reach), p)


def paired_t(pairs: Pairs) -> float | None:
    """The p-value of the paired t-test: t = mean(d) / (std(d) / sqrt(n)) against Student's t with
    n - 1 degrees of freedom.
    """
    if not _testable(pairs):
        return None
    mean, std = moments([value - other for value, other in pairs])
    return None if std is None else students_tail(mean / std * sqrt(len(pairs)), len(pairs) - 1)


def signed_rank(pairs: Pairs) -> float | None:
    """The p-value of Wilcoxon's signed-rank test, exact for up to EXACT_PAIRS pairs, with ties too.

    Differences of zero are left out; differences that are equal but for rounding share the mean of
    their ranks. W is the sum of the ranks of those above zero, and p the chance of a W as far from
    its mean, were every sign the toss of a coin. `scipy.stats.wilcoxon` is exact only without ties
    (1.17), and ties are common among accuracies.
    """
    if not _testable(pairs):
        return None
    grain = ROUNDING * max(abs(figure) for pair in pairs for figure in pair)
    differences = [steps for value, other in pairs if (steps := round((value - other) / grain))]
    doubled = _doubled_ranks([abs(difference) for difference in differences])
    observed = sum(rank for rank, difference in zip(doubled, differences, strict=True) if difference > 0)
    away = abs(2 * observed - sum(doubled))
    if len(doubled) > EXACT_PAIRS:
        # Twice the doubled W has the variance sum of the squared doubled ranks.
        return erfc(away / sqrt(2 * sum(rank * rank for rank in doubled)))
    chances = {0: 1.0}
    for rank in doubled:
        chances = _tossed(chances, rank)
    return min(1.0, sum(chance for total, chance in chances.items() if abs(2 * total - sum(doubled)) >= away))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p-values of a family of tests, so corrected that the chance of one false positive or more in
    it is below the level (Holm 1979).

    The i-th smallest of m is multiplied by m - i + 1, and is at least the one before it. None is no
    test.
    """
    known = sorted((p, index) for index, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    least = 0.0
    for place, (p, index) in enumerate(known):
        least = adjusted[index] = max(least, min(1.0, p * (len(known) - place)))
    return adjusted


def _beside(
    values: Mapping[int, float], others: Mapping[int, float], *, paired: bool
) -> ArmComparison | None:
    """Compare an arm's figures by seed with the baseline's: not corrected for other arms, and
    without a verdict.
    """
    if not paired:
        apart = welch(list(values.values()), list(others.values()))
        return apart and ArmComparison(apart.difference, apart.p, None, None, Conclusion.INCOMPLETE)
    pairs = [
        (value, others[seed]) for seed, value in values.items() if isfinite(value - others.get(seed, inf))
    ]
    difference = estimate([value - other for value, other in pairs])
    return difference and ArmComparison(
        difference, paired_t(pairs), None, signed_rank(pairs), Conclusion.INCOMPLETE
    )


def _verdict(
    difference: MeanInterval, adjusted: float | None, better: Callable[..., Any] | None
) -> Conclusion:
    if difference.n < LEAST_PAIRS:
        return Conclusion.TOO_FEW_SEEDS
    if adjusted is None:
        return Conclusion.SAME_FOR_ALL
    if adjusted >= LEVEL:
        return Conclusion.UNCLEAR
    if better is None:
        return Conclusion.DIFFERENT
    return Conclusion.BETTER if better(difference.mean, 0.0) == difference.mean else Conclusion.WORSE


def _testable(pairs: Pairs) -> bool:
    """Return True if there are enough pairs, and their differences vary by more than rounding."""
    if len(pairs) < LEAST_PAIRS:
        return False
    differences = [value - other for value, other in pairs]
    scale = max(abs(figure) for pair in pairs for figure in pair)
    return max(differences) - min(differences) > ROUNDING * scale


def _doubled_ranks(sizes: Sequence[int]) -> list[int]:
    """Twice the rank of each from the smallest, counted from 1: equal values share the mean of
    their ranks, which may be a half.
    """
    ranks, place = [0] * len(sizes), 0
    for _, equal in groupby(sorted(range(len(sizes)), key=sizes.__getitem__), key=sizes.__getitem__):
        members = list(equal)
        for index in members:
            ranks[index] = 2 * place + len(members) + 1
        place += len(members)
    return ranks


def _tossed(chances: Mapping[int, float], rank: int) -> dict[int, float]:
    """The distribution of a sum to which `rank` is added with probability 1/2."""
    after: dict[int, float] = {}
    for total, chance in chances.items():
        for sum_of in (total, total + rank):
            after[sum_of] = after.get(sum_of, 0.0) + chance / 2
    return after
