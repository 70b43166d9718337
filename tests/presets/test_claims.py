"""Claims against curves whose statistics are plain to see."""

from math import inf
from typing import Any

import pytest

from fedcore.presets.claims import (
    BEST_SO_FAR,
    ClaimComparison,
    PublishedClaim,
    Rows,
    Statistic,
    Trajectory,
    best_so_far,
    judge,
    read,
)

LOSS = Trajectory([1, 2, 3, 4], [4.0, 1.0, 3.0, 2.0], diverged=False)
ACCURACY = Trajectory([1, 2, 3, 4], [0.1, 0.5, 0.3, 0.4], diverged=False)
DIVERGED = Trajectory([1, 2], [4.0, 9.0], diverged=True)


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


def curves(**finals: list[float]) -> Rows:
    return {
        arm: {
            seed: {"train_loss": Trajectory([1], [value], diverged=False)}
            for seed, value in enumerate(values)
        }
        for arm, values in finals.items()
    }


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [
        ({}, True),
        ({"relation": "above"}, False),
        ({"factor": 0.5}, False),
        ({"factor": 0.8}, True),
        ({"than": 1.5}, False),
        ({"relation": "near", "than": 2.1, "tolerance": 0.1}, True),
        ({"relation": "near", "than": 2.1, "tolerance": 0.01}, False),
    ],
)
def test_a_comparison_holds_in_the_mean_over_the_seeds(comparison: dict[str, Any], holds: bool) -> None:
    verdict = judge(claim(**comparison), curves(a=[1.0, 3.0], b=[4.0, 2.0]))
    assert verdict.holds is holds
    assert (verdict.sides[0].left, verdict.sides[0].seeds) == (2.0, 2)


def test_the_seeds_in_which_it_holds_are_counted() -> None:
    (sides,) = judge(claim(), curves(a=[1.0, 3.0, 1.0], b=[4.0, 2.0])).sides
    assert (sides.seeds, sides.seeds_holding) == (2, 1)


def test_claim_holds_by_all_comparisons_and_is_not_judged_without_results() -> None:
    both = PublishedClaim(
        says="", source="", comparisons=(claim().comparisons[0], claim(relation="above").comparisons[0])
    )
    assert judge(both, curves(a=[1.0], b=[2.0])).holds is False
    assert judge(both, curves(a=[1.0])).holds is None


@pytest.mark.parametrize(
    "wrong", [{"statistic": "rounds_to"}, {"target": 1.0}, {"relation": "near"}, {"tolerance": 0.1}]
)
def test_a_comparison_says_all_that_it_needs(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="goes with"):
        claim(**wrong)


def test_the_progress_of_a_study_is_the_best_mean_over_seeds_so_far() -> None:
    """Four trials with two seeds: means 3, infinite, 1 and 2, so that 2 is reached with the third."""
    finals = [(2.0, 4.0), (1.0, None), (1.5, 0.5), (2.0, 2.0)]
    trials = {
        trial: {
            seed: {"test_loss": Trajectory([9], [value or 0.0], diverged=value is None)}
            for seed, value in enumerate(pair)
        }
        for trial, pair in enumerate(finals)
    }
    rows = best_so_far(trials, ["test_loss"], seed=7)
    curve = rows[BEST_SO_FAR][7]["test_loss"]
    assert (curve.rounds, curve.values) == ([1, 2, 3, 4], [3.0, 3.0, 1.0, 1.0])
    assert read("rounds_to", "test_loss", curve, 2.0) == 3
