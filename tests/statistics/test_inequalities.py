"""One-sided tests of inequalities against SciPy, and what holds of every sample."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedcore.statistics.inequalities import p_positive
from fedcore.statistics.summary import LEAST_SEEDS

NUMBERS = st.lists(st.integers(-1000, 1000).map(lambda n: n / 1000), min_size=LEAST_SEEDS, max_size=12)


@given(NUMBERS)
def test_the_p_value_is_that_of_the_paired_one_sided_t_test(margins: list[float]) -> None:
    if np.ptp(margins) > 0:
        expected = stats.ttest_rel(margins, np.zeros(len(margins)), alternative="greater").pvalue
        assert p_positive(margins) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, inf, -inf, nan]), min_size=3, max_size=12))
def test_where_only_order_counts_the_p_value_is_that_of_the_exact_sign_test(margins: list[float]) -> None:
    above, below = sum(one > 0 for one in margins), sum(one < 0 for one in margins)
    expected = stats.binomtest(above, above + below, alternative="greater").pvalue if above + below else 1.0
    assert p_positive(margins, ordinal=True) == pytest.approx(expected)
    if not all(map(np.isfinite, margins)):
        assert p_positive(margins) == p_positive(margins, ordinal=True)


@given(NUMBERS)
def test_the_two_directions_share_one_minus_the_weight_of_what_was_seen(margins: list[float]) -> None:
    opposite = [-margin for margin in margins]
    assert p_positive(margins) + p_positive(opposite) >= 1 - 1e-12


def test_margins_that_do_not_vary_are_judged_by_their_signs() -> None:
    assert p_positive([1e-9] * 5) == pytest.approx(1 / 32)
    assert p_positive([0.0] * 5) == 1


def test_fewer_than_three_seeds_tell_nothing() -> None:
    assert p_positive([1.0, 1.01]) == p_positive([]) == 1
