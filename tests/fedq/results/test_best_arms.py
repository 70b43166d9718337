"""The arms that may be the best, in words that need no statistics, and as cells of the table."""

from collections.abc import Sequence

import pytest

from fedcore.statistics.best_set import ArmVerdict
from fedq.results.best_arms import best_arms
from fedq.schemas import BestArms

SHAKE = ((-0.004, 0.003, 0.001, -0.002, 0.002), (0.003, -0.002, -0.004, 0.004, -0.001))

SHAKE_OF_ROUNDS = (1.0, 1.1, 0.9, 1.05)


def found(
    means: Sequence[float],
    *,
    seeds: int = 5,
    metric: str = "test_accuracy",
    diverged: dict[int, list[int]] | None = None,
    names: Sequence[str] = "abcdefghijkl",
    baseline: int | None = None,
    references: Sequence[int] = (),
) -> BestArms:
    """Arms with these means, which scatter by a few thousandths."""
    figures = [
        {seed: mean + SHAKE[arm % 2][seed] * (1 + arm / 10) for seed in range(seeds)}
        for arm, mean in enumerate(means)
    ]
    lost = [(diverged or {}).get(arm, []) for arm in range(len(means))]
    answer = best_arms(names[: len(means)], figures, lost, metric, "final", baseline, references=references)
    assert answer is not None
    return answer


def test_an_arm_that_leads_far_is_the_best_and_the_others_are_worse() -> None:
    answer = found([0.80, 0.90, 0.70])
    assert answer.says == (
        "b is the best arm in final test accuracy (95% confidence, 5 seeds). a and c are worse."
    )
    assert answer.arms == [1]
    assert [one.verdict for one in answer.beside] == ["worse", "best", "worse"]


def test_beside_a_baseline_arms_are_better_or_worse_or_cannot_be_told_from_it() -> None:
    answer = found([0.80, 0.90, 0.8005, 0.70, 0.95], diverged={4: [0]}, baseline=0)
    assert answer.says.startswith(
        "Beside a, in final test accuracy: b is better; d is worse; c cannot be told from it."
        " b is the best arm"
    )
    assert [one.words for one in answer.beside] == [
        "baseline",
        "better",
        "unclear",
        "worse",
        "diverged in 1 of 5 seeds",
    ]
    assert answer.arms == [1], "the set of the best is the same as without it"
    few = found([0.80, 0.90], seeds=2, baseline=0)
    assert [one.words for one in few.beside] == ["baseline", "too few seeds"]


def test_a_line_of_reference_does_not_compete() -> None:
    answer, without = found([0.80, 0.90, 0.70, 0.99], references=[3]), found([0.80, 0.90, 0.70])
    assert answer.says == without.says
    assert answer.arms == [1]
    assert answer.beside[:3] == without.beside
    assert (answer.beside[3].verdict, answer.beside[3].words) == ("reference", "reference")
    assert best_arms("ab", [{0: 0.5}, {0: 0.9}], [(), ()], "test_accuracy", "final", references=[1]) is None


def test_methods_can_be_beside_a_line_of_reference_that_is_the_baseline() -> None:
    answer = found([0.80, 0.90, 0.70, 0.99], baseline=3, references=[3])
    assert answer.says.startswith("Beside d, in final test accuracy: a, b and c are worse. b is the best arm")
    assert answer.arms == [1]
    assert [one.words for one in answer.beside] == ["worse", "worse", "worse", "baseline"]
    alone = found([0.80, 0.99], baseline=1, references=[1])
    assert alone.says == "Beside b, in final test accuracy: a is worse."


@pytest.mark.parametrize(
    ("arms", "confirmed", "said"), [(6, False, True), (5, False, False), (6, True, False)]
)
def test_a_leader_of_many_arms_is_selected_until_it_is_confirmed(
    arms: int, confirmed: bool, said: bool
) -> None:
    means = [0.9, *[0.5] * (arms - 1)]
    figures = [{seed: mean + SHAKE[arm % 2][seed] for seed in range(5)} for arm, mean in enumerate(means)]
    answer = best_arms("abcdef"[:arms], figures, [()] * arms, "test_accuracy", "final", confirmed=confirmed)
    assert answer is not None
    assert (f"selected from {arms} arms by these figures" in answer.says) is said


def test_of_losses_the_smallest_is_the_best() -> None:
    assert found([0.80, 0.90, 0.70], metric="train_loss").says.startswith(
        "c is the best arm in final train loss"
    )


def test_an_arm_that_cannot_be_told_from_the_leader_is_named_with_the_seeds_that_would_decide() -> None:
    answer = found([0.8990, 0.9, 0.7])
    assert "b leads in final test accuracy, but a may be as good or better" in answer.says
    assert f"About {answer.seeds_to_decide} seeds would tell b from the closest of them, if" in answer.says
    assert answer.arms == [0, 1]


@pytest.mark.parametrize(("arms", "seeds", "needed"), [(2, 3, 4), (2, 2, 4), (3, 2, 3)])
def test_too_few_seeds_are_said_with_the_number_that_is_needed(arms: int, seeds: int, needed: int) -> None:
    answer = found([0.9, 0.5, 0.4][:arms], seeds=seeds)
    assert answer.says == f"At least {needed} seeds are needed to tell arms apart, not {seeds}."
    assert answer.arms == []


def test_where_no_seed_is_shared_no_arm_is_the_best() -> None:
    apart: list[dict[int, float]] = [{0: 0.9, 1: 0.91, 2: 0.92}, {3: 0.95, 4: 0.96, 5: 0.97}]
    for figures in (apart, [apart[0], {}]):
        answer = best_arms("ab", figures, [(), ()], "test_accuracy", "final")
        assert answer is not None
        assert "best arm" not in answer.says
        assert "no two arms have figures of the same seeds" in answer.says or "At least" in answer.says


def test_the_best_of_some_arms_is_not_said_to_be_the_best_of_all() -> None:
    figures = [{seed: mean + SHAKE[arm][seed] for seed in range(5)} for arm, mean in enumerate((0.9, 0.5))]
    answer = best_arms("abc", [*figures, {}], [()] * 3, "test_accuracy", "final")
    assert answer is not None
    assert answer.says.startswith("a is the best of the 2 arms that can be compared in final test accuracy")
    assert "c cannot be compared: too few figures" in answer.says


def test_arms_that_diverged_are_named_and_not_imputed() -> None:
    answer = found([0.8, 0.9, 0.95], diverged={2: [1]})
    assert "c diverged." in answer.says
    assert answer.arms == [1]
    assert (answer.beside[2].verdict, answer.beside[2].diverged) == (ArmVerdict.DIVERGED, 1)


def test_many_arms_are_counted_and_names_with_commas_are_set_apart() -> None:
    many = found([0.9, *[0.5] * 9])
    assert "The other 9 are worse." in many.says
    alike = found([0.9] * 9).says
    assert " and 3 others may be as good or better" in alike
    assert found([0.9, 0.5, 0.4], names=["lr=1, E=2", "x", "y"]).says.startswith('"lr=1, E=2" is the best')


def test_verdicts_are_the_signs_of_the_intervals() -> None:
    for one in found([0.9, 0.899, 0.7, 0.5]).beside:
        assert one.low is not None
        assert one.high is not None
        signs = {ArmVerdict.BEST: one.low == 0, ArmVerdict.WORSE: one.high == 0}
        assert one.verdict is not None
        assert signs.get(one.verdict, one.low < 0 < one.high)


def test_a_single_arm_and_a_metric_without_a_better_have_no_best() -> None:
    assert best_arms("a", [{0: 0.5, 1: 0.6, 2: 0.7}], [()], "test_accuracy", "final") is None
    assert best_arms("ab", [{0: 0.5}, {0: 0.6}], [(), ()], "epsilon", "final") is None


@pytest.mark.parametrize(("ended", "known"), [(200, True), (201, False)])
def test_of_very_many_arms_those_that_have_ended_count(ended: int, known: bool) -> None:
    figures = [{0: 0.5, 1: 0.6} if arm < ended else {} for arm in range(300)]
    names = [str(arm) for arm in range(300)]
    assert (best_arms(names, figures, [()] * 300, "test_accuracy", "final") is not None) is known


def test_losses_of_nought_are_compared_as_they_are() -> None:
    """They have no logarithm."""
    answer = best_arms(
        "ab",
        [dict.fromkeys(range(4), 0.0), {seed: 1.0 + seed for seed in range(4)}],
        [(), ()],
        "train_loss",
        "final",
    )
    assert answer is not None
    assert answer.beside[1].difference == pytest.approx(2.5)


def test_costs_are_the_better_the_lower_they_are_and_name_the_target() -> None:
    """Though they are those of an accuracy, of which more is better."""
    figures = [{seed: rounds * SHAKE_OF_ROUNDS[seed] for seed in range(4)} for rounds in (40, 10, 80)]
    answer = best_arms("abc", figures, [()] * 3, "test_accuracy", "rounds", target=0.9, horizon=100)
    assert answer is not None
    assert (answer.arms, answer.by) == ([1], "rounds")
    assert answer.says.startswith("b is the best arm in rounds to test accuracy 0.9 (")
    assert answer.says.endswith(
        "Runs count up to 100 rounds, the least that one spent which did not reach it."
    )
    assert [one.difference is not None and one.difference < 0 for one in answer.beside] == [
        False,
        True,
        False,
    ]
