"""Importance of settings: shares of the variance, and which settings tell arms apart."""

from itertools import product
from typing import Any

import pytest

from fedcore.statistics.importance import distinguishing_settings, rank_settings

GRID = list(product(range(2), range(3), range(2)))
SETTINGS = dict(zip("abc", map(list, zip(*GRID, strict=True)), strict=True))


@pytest.mark.parametrize("size", [1.0, 1e307, 1e-300])
def test_settings_without_interaction_or_noise_explain_their_shares(size: float) -> None:
    found = rank_settings(SETTINGS, [size * (4 * a + b) for a, b, _ in GRID])
    # Of a variance of 4 and 2/3 in all: (4 a has 2^2, b has (3^2 - 1) / 12).
    assert [one.path for one in found] == ["a", "b", "c"]
    assert [one.share for one in found] == pytest.approx([6 / 7, 1 / 7, 0])


def test_noise_takes_from_the_share() -> None:
    """The formula by hand: one factor of two levels with three arms each."""
    figures = [1.0, 2.0, 3.0, 5.0, 6.0, 10.0]
    between, within = 3 * ((2 - 4.5) ** 2 + (7 - 4.5) ** 2), 2.0 + 14.0
    error = within / 4
    (found,) = rank_settings({"a": [0, 0, 0, 1, 1, 1]}, figures)
    assert found.share == pytest.approx((between - error) / (between + within + error))


def test_a_setting_without_influence_explains_nothing() -> None:
    (found,) = rank_settings({"a": ["x", "y", "x", "y"]}, [1.0, 1.0, 2.0, 2.0])
    assert found.share == 0


@pytest.mark.parametrize(
    ("settings", "figures"),
    [
        ({"a": ["x", "y", "z"]}, [1.0, 2.0, 3.0]),
        ({"a": [1, 1, 1]}, [1.0, 2.0, 3.0]),
        ({"a": [1, 1, 2]}, [2.0, 2.0, 2.0]),
        ({"a": [1, 2]}, [None, None]),
        ({"a": []}, []),
    ],
    ids=["a value for each arm", "one value", "equal figures", "no figures", "no arms"],
)
def test_differences_that_chance_may_explain_have_no_share(
    settings: dict[str, Any], figures: list[Any]
) -> None:
    assert [one.share for one in rank_settings(settings, figures)] == [None]


def test_arms_without_a_figure_do_not_count() -> None:
    settings = {"a": [0, 0, 1, 1, 5, 6], "b": [0, 1, 0, 1, 0, 1]}
    figures = [1.0, 2.0, 4.0, 5.5, None, None]
    assert rank_settings(settings, figures) == rank_settings(
        {path: values[:4] for path, values in settings.items()}, figures[:4]
    )


def test_many_numbers_are_compared_in_eight_groups_of_neighbours() -> None:
    numbers = [0.5 * number for number in range(24)]
    figures = [float(number // 3) for number in range(24)]
    (found,) = rank_settings({"a": numbers}, figures)
    assert found.share == pytest.approx(1)
    (named,) = rank_settings({"a": [*map(str, numbers)]}, figures)
    assert named.share is None, "names have no neighbours"


def test_true_and_one_are_two_values() -> None:
    (found,) = rank_settings({"a": [True, True, 1, 1]}, [0.0, 0.0, 1.0, 1.0])
    assert found.share == pytest.approx(1)


@pytest.mark.parametrize(
    ("settings", "telling"),
    [
        # Follow from the kind: a number and a word that one algorithm has.
        (
            {
                "algorithm.kind": ["fedavg", "fedprox"],
                "algorithm.mu": [None, 0.1],
                "algorithm.option": ["x", None],
            },
            ["algorithm.kind"],
        ),
        # Two values of one kind, the kind of another block, and what has no kind.
        (
            {"algorithm.kind": ["a", "b", "b"], "algorithm.mu": [None, 1, 2]},
            ["algorithm.kind", "algorithm.mu"],
        ),
        ({"algorithm.kind": ["a", "b"], "local.lr": [0.1, 0.2]}, ["algorithm.kind", "local.lr"]),
        ({"evaluation.best_model": [None, "test_loss"]}, ["evaluation.best_model"]),
    ],
)
def test_options_that_follow_from_a_kind_do_not_tell_arms_apart(
    settings: dict[str, Any], telling: list[str]
) -> None:
    assert distinguishing_settings(settings) == telling
