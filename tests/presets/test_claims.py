"""Claims against curves whose statistics are plain to see."""

from collections import Counter
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fedcore.presets.claims import (
    ClaimComparison,
    PublishedClaim,
    Statistic,
    Trajectory,
    judge,
    read,
)
from fedcore.statistics.inequalities import ClaimOutcome
from fedcore.statistics.summary import LEVEL

LOSS = Trajectory([1, 2, 3, 4], [4.0, 1.0, 3.0, 2.0], diverged=False)
ACCURACY = Trajectory([1, 2, 3, 4], [0.1, 0.5, 0.3, 0.4], diverged=False)
DIVERGED = Trajectory([1, 2], [4.0, 9.0], diverged=True)
FIGURES = st.integers(-500, 500).map(lambda n: n / 50)


@pytest.mark.parametrize(
    ("statistic", "of_loss", "of_accuracy"),
    [
        ("final", 2.0, 0.4),
        ("best", 1.0, 0.5),
        ("mean", 2.5, 0.325),
        ("tail", 2.0, 0.4),
        ("fluctuation", 2.0, 0.2),
    ],
)
def test_statistics_of_a_curve(statistic: Statistic, of_loss: float, of_accuracy: float) -> None:
    assert read(statistic, "train_loss", LOSS) == pytest.approx(of_loss)
    assert read(statistic, "test_accuracy", ACCURACY) == pytest.approx(of_accuracy)


def test_rounds_to_a_target_are_the_first_that_reach_it() -> None:
    assert read("rounds_to", "train_loss", LOSS, target=3.5) == 2
    assert read("rounds_to", "test_accuracy", ACCURACY, target=0.5) == 2
    assert read("rounds_to", "train_loss", LOSS, target=0.5) == inf


def test_the_tail_is_the_last_tenth() -> None:
    curve = Trajectory(range(1, 21), [*[9.0] * 18, 1.0, 2.0], diverged=False)
    assert read("tail", "train_loss", curve) == 1.5


def test_arm_that_diverged_or_was_never_measured_is_the_worst() -> None:
    nothing = Trajectory([], [], diverged=False)
    for curve in (DIVERGED, nothing):
        assert read("final", "train_loss", curve) == inf
        assert read("final", "test_accuracy", curve) == -inf
        assert read("fluctuation", "test_accuracy", curve) == inf
        assert read("best", "train_loss", curve) == inf
        assert read("rounds_to", "train_loss", curve, target=9.0) == inf


def claim(**comparison: Any) -> PublishedClaim:
    made = ClaimComparison(
        **{"metric": "train_loss", "arm": "a", "relation": "below", "than": "b"} | comparison
    )
    return PublishedClaim(says="it is so", source="Figure 1", comparisons=(made,))


def curves(**finals: list[float]) -> dict[str, dict[int, dict[str, Trajectory]]]:
    return {
        arm: {
            seed: {"train_loss": Trajectory([1], [value], diverged=False)}
            for seed, value in enumerate(values)
        }
        for arm, values in finals.items()
    }


HOLDS, DOES_NOT_HOLD, NOT_DECIDED = ClaimOutcome
TRIALS = 4000
"""Simulated claims. Of a level of 5 %, 6.2 % are exceeded with a probability below 0.001."""
BOUND = 0.062


@pytest.mark.parametrize(
    ("comparison", "outcome"),
    [
        ({}, HOLDS),
        ({"relation": "above"}, DOES_NOT_HOLD),
        ({"factor": 0.9}, NOT_DECIDED),
        ({"factor": 0.5}, DOES_NOT_HOLD),
        ({"than": 2.2}, HOLDS),
        ({"than": 2.05}, NOT_DECIDED),
        ({"relation": "near", "than": 2.0, "tolerance": 0.1}, HOLDS),
        ({"relation": "near", "than": 2.0, "tolerance": 0.01}, NOT_DECIDED),
        ({"relation": "near", "than": 3.0, "tolerance": 0.1}, DOES_NOT_HOLD),
    ],
)
def test_a_comparison_is_tested_over_the_seeds(comparison: dict[str, Any], outcome: ClaimOutcome) -> None:
    a, b = [1.9, 2.0, 2.1, 2.0], [2.2, 2.4, 2.3, 2.3]
    verdict = judge(claim(**comparison), curves(a=a, b=b))
    assert verdict.outcome is outcome
    (side,) = verdict.sides
    assert side.left == pytest.approx(2.0)
    assert side.seeds == 4


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=3, max_size=10), st.floats(0.1, 10))
def test_a_claim_holds_where_the_paired_t_test_of_scipy_says_so(
    pairs: list[tuple[float, float]], factor: float
) -> None:
    a, b = map(np.array, zip(*pairs, strict=True))
    margins = factor * b - a
    assume(np.ptp(margins) > 1e-3)
    below, above = (
        stats.ttest_rel(a, factor * b, alternative=way).pvalue <= LEVEL for way in ("less", "greater")
    )
    expected = HOLDS if below else DOES_NOT_HOLD if above else NOT_DECIDED
    assert judge(claim(factor=factor), curves(a=list(a), b=list(b))).outcome is expected


@given(
    st.lists(FIGURES, min_size=3, max_size=10), FIGURES.filter(lambda x: abs(x) > 0.1), st.floats(0.01, 0.9)
)
def test_a_figure_is_near_a_number_if_its_interval_of_90_percent_lies_within_the_tolerance(
    values: list[float], number: float, tolerance: float
) -> None:
    """Two one-sided tests at 5 % reject both where the interval lies in the region of equivalence."""
    assume(np.ptp(values) > 1e-3)
    reach = stats.t.ppf(0.95, len(values) - 1) * stats.sem(values)
    low, high = np.mean(values) - reach, np.mean(values) + reach
    ends = sorted([(1 - tolerance) * number, (1 + tolerance) * number])
    assume(min(abs(low - ends[0]), abs(high - ends[1])) > 1e-6)
    verdict = judge(claim(relation="near", than=number, tolerance=tolerance), curves(a=values))
    assert (verdict.outcome is HOLDS) == (ends[0] < low and high < ends[1])


@given(st.lists(st.tuples(FIGURES, FIGURES), max_size=8))
def test_a_claim_read_from_the_other_side_has_the_same_outcome(pairs: list[tuple[float, float]]) -> None:
    assume(pairs)
    rows = curves(a=[a for a, _ in pairs], b=[b for _, b in pairs])
    below = judge(claim(), rows)
    assert judge(claim(arm="b", relation="above", than="a"), rows).outcome is below.outcome
    contrary = {HOLDS: DOES_NOT_HOLD, DOES_NOT_HOLD: HOLDS, NOT_DECIDED: NOT_DECIDED}
    assume(all(a != b for a, b in pairs))
    assert below.outcome is not None
    assert judge(claim(relation="above"), rows).outcome is contrary[below.outcome]


@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize(
    ("comparisons", "shift"),
    [
        ([{"than": 0.0}], [0.0]),
        ([{"than": 0.0}, {"than": 0.0, "arm": "b"}], [0.0, -5.0]),
        ([{"relation": "near", "than": -10.0, "tolerance": 0.1}], [-11.0]),
        ([{"relation": "near", "than": 10.0, "tolerance": 0.1}], [11.0]),
    ],
    ids=["one", "one of two", "near a negative number", "near"],
)
def test_a_false_claim_at_the_boundary_is_said_to_hold_in_five_percent(
    comparisons: list[dict[str, Any]], shift: list[float], seeds: int
) -> None:
    outcomes = simulated(comparisons, shift, seeds)
    assert outcomes[HOLDS] <= BOUND * TRIALS


@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize(
    ("comparisons", "shift"),
    [
        ([{"than": 0.0}], [0.0]),
        ([{"than": 0.0}, {"than": 0.0, "arm": "b"}], [0.0, 0.0]),
        ([{"relation": "near", "than": 10.0, "tolerance": 0.001}], [10.0]),
    ],
    ids=["one", "two", "near, between close ends"],
)
def test_a_true_claim_at_the_boundary_is_said_not_to_hold_in_five_percent(
    comparisons: list[dict[str, Any]], shift: list[float], seeds: int
) -> None:
    outcomes = simulated(comparisons, shift, seeds)
    assert outcomes[DOES_NOT_HOLD] <= BOUND * TRIALS


def simulated(
    comparisons: list[dict[str, Any]], shift: list[float], seeds: int
) -> Counter[ClaimOutcome | None]:
    """Outcomes of a claim on arms a, b whose figures are normal around `shift`."""
    one = PublishedClaim(
        says="", source="", comparisons=tuple(claim(**one).comparisons[0] for one in comparisons)
    )
    draws = np.random.default_rng(1).normal(size=(TRIALS, len(shift), seeds)) + np.array(shift)[:, None]
    return Counter(
        judge(one, curves(**dict(zip("ab", map(list, draw), strict=False)))).outcome for draw in draws
    )


def test_seeds_tell_one_claim_from_its_contrary_where_the_difference_is_large() -> None:
    outcomes = simulated([{"than": 0.0}], [-2.0], 10)
    assert outcomes[HOLDS] > 0.99 * TRIALS


def test_rounds_are_judged_by_signs_and_a_target_that_is_not_reached_is_later() -> None:
    never = 9.0
    quick, slow = [0.5] * 6, [never] * 5

    def outcome(a: list[float], b: list[float]) -> ClaimOutcome | None:
        rounds = {"statistic": "rounds_to", "target": 1.0}
        return judge(claim(**rounds), curves(a=a, b=b)).outcome

    assert outcome([*quick[:5], never], [*slow, never]) is HOLDS, "five for it and a tie"
    assert outcome([*quick[:4], never, never], [*slow, never]) is NOT_DECIDED
    assert outcome([*slow, 0.5], [*quick[:5], never]) is NOT_DECIDED, "five of six"
    assert outcome([never, never, never, never, 0.3, 8.0], [never] * 6) is NOT_DECIDED


def test_runs_that_diverged_make_it_a_test_of_signs() -> None:
    a, b = curves(a=[1.0, 1.1, 1.2, 1.3, 1.4]), curves(b=[2.0, 2.1, 2.2, 2.3, 2.4])
    b["b"][0] = {"train_loss": DIVERGED}
    assert judge(claim(), {**a, **b}).outcome is HOLDS
    a["a"][1] = {"train_loss": DIVERGED}
    verdict = judge(claim(), {**a, **b})
    assert (verdict.outcome, verdict.sides[0].left) == (NOT_DECIDED, inf)


def test_where_nothing_is_random_two_seeds_decide() -> None:
    assert judge(claim(), curves(a=[1.0, 1.0], b=[2.0, 2.0])).outcome is HOLDS
    assert judge(claim(), curves(a=[2.0, 2.0], b=[2.0, 2.0])).outcome is DOES_NOT_HOLD
    assert judge(claim(), curves(a=[1.0], b=[2.0])).outcome is NOT_DECIDED, "one seed shows nothing"
    assert judge(claim(), curves(a=[1.0, 1.0], b=[2.0, 2.1])).outcome is NOT_DECIDED


def test_the_seeds_in_which_it_holds_are_counted() -> None:
    (sides,) = judge(claim(), curves(a=[1.0, 3.0, 1.0], b=[4.0, 2.0])).sides
    assert (sides.seeds, sides.seeds_holding) == (2, 1)


def test_a_claim_is_decided_by_its_weakest_comparison_and_not_judged_without_results() -> None:
    both = PublishedClaim(
        says="",
        source="",
        comparisons=(claim().comparisons[0], claim(than="c").comparisons[0]),
    )
    a, above, far, unclear = [1.0, 1.1, 1.2], [2.0, 2.2, 2.1], [0.1, 0.0, 0.3], [0.9, 1.2, 1.3]
    assert judge(both, curves(a=a, b=above, c=above)).outcome is HOLDS
    assert judge(both, curves(a=a, b=above, c=unclear)).outcome is NOT_DECIDED
    assert judge(both, curves(a=a, b=far, c=unclear)).outcome is DOES_NOT_HOLD
    assert judge(both, curves(a=a, b=above)).outcome is None


@pytest.mark.parametrize(
    "wrong", [{"statistic": "rounds_to"}, {"target": 1.0}, {"relation": "near"}, {"tolerance": 0.1}]
)
def test_a_comparison_says_all_that_it_needs(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="goes with"):
        claim(**wrong)
