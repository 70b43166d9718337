"""The tests of significance against SciPy, against their definitions counted out, and against what
they promise.
"""

from itertools import combinations, product
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest

from fedcore.lazy import LazyModule
from fedcore.statistics.significance import (
    LEVEL,
    Conclusion,
    Pairs,
    compare,
    holm,
    paired_t,
    signed_rank,
    welch,
)
from fedcore.statistics.summary import students_quantile, students_tail

stats: Any = LazyModule("scipy.stats")


def _pairs(n: int, shift: float = 0.4, seed: int = 0) -> Pairs:
    draw = np.random.default_rng([n, seed])
    other = draw.normal(size=n)
    return list(zip((other + draw.normal(loc=shift, size=n)).tolist(), other.tolist(), strict=True))


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045)])
def test_students_quantiles_and_tails_are_those_of_the_table(freedom: int, t: float) -> None:
    assert students_quantile(freedom) == pytest.approx(t, abs=5e-4)
    assert students_tail(-t, freedom) == students_tail(t, freedom) == pytest.approx(0.05, abs=5e-5)


@pytest.mark.parametrize("t", [1e-3, 3.2, 40.0, 1e5, 1e100])
def test_students_tail_keeps_its_digits_however_small(t: float) -> None:
    """With two degrees of freedom it is 1 - t / sqrt(2 + t^2), here without cancellation."""
    root = sqrt(2 + t * t)
    assert students_tail(t, 2) == pytest.approx(2 / (root * (root + t)), rel=1e-12)


@pytest.mark.parametrize("n", [3, 4, 5, 10, 50, 51])
def test_the_paired_test_is_that_of_scipy(n: int) -> None:
    values, others = zip(*_pairs(n), strict=True)
    assert paired_t(_pairs(n)) == pytest.approx(stats.ttest_rel(values, others).pvalue, rel=1e-9)


@pytest.mark.parametrize("n", [3, 4, 5, 10, 30, 50])
def test_the_signed_rank_test_is_that_of_scipy(n: int) -> None:
    values, others = zip(*_pairs(n), strict=True)
    assert signed_rank(_pairs(n)) == pytest.approx(
        stats.wilcoxon(values, others, method="exact").pvalue, rel=1e-9
    )


def test_signed_rank_test_of_many_seeds_is_as_good_as_exact() -> None:
    values, others = zip(*_pairs(200, 0.1), strict=True)
    assert signed_rank(_pairs(200, 0.1)) == pytest.approx(
        stats.wilcoxon(values, others, method="exact").pvalue, rel=0.02
    )


@pytest.mark.parametrize(
    "differences", [[1, 1, 2], [-1, 1, 1, 3, 0, 2], [0, 0, 5, -5, 5, 1, 1], [2, 2, 2, -2, 7, 7, 0, 1]]
)
def test_with_ties_and_zeros_the_signed_rank_test_counts_all_signs(differences: list[int]) -> None:
    left = np.array([difference for difference in differences if difference])
    ranks = stats.rankdata(np.abs(left))
    away = abs(ranks[left > 0].sum() - ranks.sum() / 2)
    tosses = [
        abs(ranks[np.array(signs)].sum() - ranks.sum() / 2)
        for signs in product([True, False], repeat=len(left))
    ]
    assert signed_rank([(0.1 * (difference + 7), 0.7) for difference in differences]) == pytest.approx(
        np.mean(np.array(tosses) >= away)
    )


def test_five_seeds_are_too_few_for_the_signed_rank_test_to_rule_chance_out() -> None:
    clear = [(1.0 + 0.01 * seed, 0.0) for seed in range(6)]
    assert signed_rank(clear[:5]) == 2 / 2**5 > LEVEL
    assert signed_rank(clear) == 2 / 2**6 < LEVEL


def test_holms_correction_is_that_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, None, 0.6]) == pytest.approx([0.02, None, 0.6])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_holms_correction_is_bonferronis_in_every_subfamily() -> None:
    """Closed testing: p_i is corrected to the largest, over the families it is in, of their size
    times their smallest p.
    """
    ps = np.random.default_rng(3).uniform(0, 0.2, 6).tolist()
    families = [chosen for size in range(1, 7) for chosen in combinations(range(6), size)]
    expected = [
        max(min(1.0, len(family) * min(ps[j] for j in family)) for family in families if i in family)
        for i in range(6)
    ]
    assert holm(ps) == pytest.approx(expected)


def test_one_in_twenty_experiments_finds_a_difference_between_equal_arms() -> None:
    """The promise of the correction, in 2,000 experiments with six arms and five seeds that are all
    alike.
    """
    draw, found = np.random.default_rng(11), 0
    for _ in range(2_000):
        figures = [dict(enumerate(draw.normal(size=5).tolist())) for _ in range(6)]
        found += any(
            one is not None and one.verdict is not Conclusion.UNCLEAR
            for one in compare(figures, 0, [True] * 6, max)
        )
    assert found / 2_000 < LEVEL + 0.015


CLEAR = {0: 1.0, 1: 1.1, 2: 1.21}
NONE = {0: 0.0, 1: 0.0, 2: 0.0}


def _verdict(values: dict[int, float], *, whole: bool = True, better: object = max) -> Conclusion:
    _, found = compare([NONE, values], 0, [True, whole], better)  # type: ignore[arg-type]
    assert found is not None
    return found.verdict


def test_the_verdict_says_what_may_be_concluded() -> None:
    assert _verdict(CLEAR) is Conclusion.BETTER
    assert _verdict(CLEAR, better=min) is Conclusion.WORSE
    assert _verdict(CLEAR, better=None) is Conclusion.DIFFERENT
    assert _verdict({0: 1.0, 1: -1.0, 2: 0.5}) is Conclusion.UNCLEAR
    assert _verdict({0: 1.0, 1: 1.1}) is Conclusion.TOO_FEW_SEEDS
    assert _verdict({0: 1.0, 1: 1.0, 2: 1.0}) is Conclusion.SAME_FOR_ALL
    assert _verdict(CLEAR, whole=False) is Conclusion.INCOMPLETE


def test_differences_that_agree_to_rounding_are_the_same() -> None:
    pairs = [(0.5, 0.4), (0.6, 0.5), (0.8, 0.7)]
    assert len({value - other for value, other in pairs}) > 1
    assert paired_t(pairs) is signed_rank(pairs) is None


def test_an_arm_is_compared_over_the_seeds_that_both_have() -> None:
    found = compare([CLEAR, {1: 3.0, 2: 3.0, 7: 0.0}, {8: 1.0}], 0, [True] * 3, max)
    assert found[0] is found[2] is None
    assert found[1] is not None
    assert found[1].difference.n == 2
    assert found[1].difference.mean == pytest.approx(3 - 1.155)
    assert found[1].p is None


def test_any_arm_may_be_the_baseline() -> None:
    forth, back = (
        compare([NONE, CLEAR], 0, [True, True], max)[1],
        compare([NONE, CLEAR], 1, [True, True], max)[0],
    )
    assert forth is not None
    assert back is not None
    assert (back.difference.mean, back.p, back.verdict) == (-forth.difference.mean, forth.p, Conclusion.WORSE)


@pytest.mark.parametrize("far", [1e308, inf, nan])
def test_figures_too_far_apart_for_a_number_are_no_pair(far: float) -> None:
    _, found = compare([{0: -1e308, 1: 0.0}, {0: far, 1: 1.0}], 0, [True, True], max)
    assert found is not None
    assert found.difference.n == 1


@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 9), (30, 5)])
def test_independent_samples_are_held_together_by_welchs_test(n: int, m: int) -> None:
    draw = np.random.default_rng([n, m])
    values, others = draw.normal(1.0, 1.0, n).tolist(), draw.normal(0.2, 3.0, m).tolist()
    found, expected = welch(values, others), stats.ttest_ind(values, others, equal_var=False)
    assert found is not None
    assert found.p is not None
    freedom = int(expected.df)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(expected.statistic), freedom), rel=1e-9)
    assert expected.pvalue <= found.p
    reach = stats.t.ppf(0.975, freedom) * (np.mean(values) - np.mean(others)) / expected.statistic
    middle = np.mean(values) - np.mean(others)
    assert found.difference == pytest.approx(
        (
            min(n, m),
            middle,
            np.hypot(np.std(values, ddof=1), np.std(others, ddof=1)),
            middle - reach,
            middle + reach,
        )
    )


def test_independent_samples_that_do_not_vary_or_are_too_small_are_not_tested() -> None:
    assert welch([], [1.0]) is None
    for values, others in (([1.0], [2.0, 3.0, 4.0]), ([1.0, 2.0], [2.0, 3.0, 4.0]), ([1.0] * 3, [2.0] * 3)):
        found = welch(values, others)
        assert found is not None
        assert found.p is None


def test_arms_that_share_no_chance_are_compared_as_independent() -> None:
    figures = [{0: 1.0, 1: 1.2, 2: 1.1}, {0: 2.0, 1: 2.2, 2: 2.1}, {7: 2.0, 8: 2.25, 9: 2.1}]
    one, two, three = compare(figures, 0, [True] * 3, min, [True, True, False])
    assert one is None
    assert two is not None
    assert two.verdict is Conclusion.SAME_FOR_ALL
    assert three is not None
    assert (three.verdict, three.p_signed_rank) == (Conclusion.WORSE, None)
    assert three.p_adjusted == three.p
