"""One-sided tests of inequalities between figures of runs, paired by seed; claims are judged by them.

SciPy is imported when Student's t is first needed, as in `fedcore.statistics.summary`.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import comb, isfinite, isnan, sqrt

from fedcore.statistics.summary import LEAST_SEEDS, moments, students_tail


class ClaimOutcome(StrEnum):
    """Outcome of a claim or a comparison."""

    HOLDS = "holds"
    """A test rejects the contrary."""
    DOES_NOT_HOLD = "does_not_hold"
    """A test rejects it."""
    NOT_DECIDED = "not_decided"
    """The seeds are too few, or differ too much, to tell."""


def p_positive(margins: Sequence[float], *, ordinal: bool = False) -> float:
    """One-sided p-value of the hypothesis that margins, one for each seed, are not positive: small
    where they are. 1 for fewer than LEAST_SEEDS.

    Student's t-test of their mean. The exact sign test of their median where one is infinite (a
    run that diverged), where all are the same, so that nothing tells how far they vary, or where
    only their order counts (`ordinal`). Zeros and NaN, two infinite figures, are ties, which the
    sign test leaves out.
    """
    n = len(margins)
    if n < LEAST_SEEDS:
        return 1.0
    if ordinal or not all(map(isfinite, margins)):
        return _sign_test(margins)
    mean, std = moments(margins)
    if not std:
        return _sign_test(margins)
    tail = students_tail(mean / std * sqrt(n), n - 1) / 2
    return tail if mean > 0 else 1 - tail


def _sign_test(margins: Sequence[float]) -> float:
    """P(X >= number of positive margins), X binomial with probability 1/2 of the margins not zero."""
    decided = [margin > 0 for margin in margins if margin and not isnan(margin)]
    n = len(decided)
    ways = sum(comb(n, k) for k in range(sum(decided), n + 1))
    return ways / float(2**n)
