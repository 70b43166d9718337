"""Importance of settings: how far they decide the top, and which settings tell arms apart."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.statistics.importance import distinguishing_settings, rank_settings

GRID = list(product(range(2), range(3), range(2)))
SETTINGS = dict(zip("abc", map(list, zip(*GRID, strict=True)), strict=True))


def shares(settings: dict[str, Any], figures: list[Any], *, higher: bool = True) -> dict[str, float | None]:
    return {one.path: one.share for one in rank_settings(settings, figures, higher_is_better=higher)}


@pytest.mark.parametrize("size", [1.0, 1e307, 1e-300])
def test_the_divergence_of_the_top_from_all_by_hand(size: float) -> None:
    """The best 2 of 12 arms have a = 1 (half of all arms) and b = 2 (a third of them), and each c once."""
    found = shares(SETTINGS, [size * (4 * a + b) for a, b, _ in GRID])
    assert [*found] == ["b", "a", "c"]
    a, b = 0.5 * (1 / 0.5 - 1) ** 2 + 0.5, (3 - 1) ** 2 / 3 + 2 / 3
    assert found["a"] == pytest.approx((a / 5 - 1 / 11) / (1 - 1 / 11))
    assert found["b"] == pytest.approx((b / 5 - 2 / 11) / (1 - 2 / 11))
    assert found["c"] == 0


def test_a_setting_that_decides_the_top_has_all_of_it_and_one_that_tells_useless_arms_apart_nothing() -> None:
    """However far apart these are, which ruled the shares of the variance."""
    arms = list(product(("good", "bad"), ("x", "y"), range(10)))
    figures = [
        1.0 + number / 100 if q == "good" and number > 7 else (0.5 if u == "x" else -1e6)
        for q, u, number in arms
    ]
    settings: dict[str, Any] = {"quality": [], "useless": []}
    for quality, useless, _ in arms:
        settings["quality"].append(quality)
        settings["useless"].append(useless)
    found = shares(settings, figures)
    assert found["useless"] == 0
    assert found["quality"] is not None
    assert found["quality"] > 0
    alone = shares({"a": ["top"] * 4 + ["rest"] * 36}, [1.0] * 4 + [0.1 * place for place in range(-36, 0)])
    assert alone["a"] == pytest.approx(1)


def test_less_is_better_mirrored() -> None:
    figures = [4 * a + b for a, b, _ in GRID]
    assert shares(SETTINGS, [-one for one in figures], higher=False) == shares(SETTINGS, figures)


@given(order=st.permutations(range(12)), seed=st.integers(0, 9))
def test_neither_the_order_of_arms_nor_the_names_of_values_count(order: list[int], seed: int) -> None:
    figures = np.random.default_rng(seed).normal(size=12).tolist()
    names = {path: [f"value {value}" for value in values] for path, values in SETTINGS.items()}
    moved = {path: [values[place] for place in order] for path, values in names.items()}
    assert shares(moved, [figures[place] for place in order]) == shares(SETTINGS, figures)


def test_without_influence_the_share_is_about_nothing() -> None:
    """Its mean before it is cut at 0 is exactly 0 over all orders of the figures; here over 2,000."""
    draw = np.random.default_rng(0)
    levels = ["a", "b", "c"] * 10
    raw = []
    for _ in range(2_000):
        top = draw.permutation(30)[:3]
        counts = np.array([sum(levels[place] == level for place in top) for level in "abc"])
        divergence = ((counts / 3 - 1 / 3) ** 2 / (1 / 3)).sum()
        raw.append((divergence / 9 - 2 / 29) / (1 - 2 / 29))
        figures = np.zeros(30)
        figures[top] = 1.0
        assert shares({"x": levels}, figures.tolist())["x"] == pytest.approx(max(0.0, raw[-1]))
    assert np.mean(raw) == pytest.approx(0, abs=4 * np.std(raw) / 2_000**0.5)


def test_the_ratios_are_those_of_optunas_evaluator() -> None:
    """For many arms, where neither its prior nor the correction for chance matters."""
    optuna = pytest.importorskip("optuna")
    draw, study = np.random.default_rng(1), optuna.create_study(direction="maximize")
    distribution = optuna.distributions.CategoricalDistribution([0, 1, 2])
    settings: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    figures = []
    for a, b, c in draw.integers(3, size=(5_000, 3)).tolist():
        figures.append(a + 0.5 * b + draw.normal(scale=0.7))
        params = {"a": a, "b": b, "c": c}
        for name, value in params.items():
            settings[name].append(value)
        study.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=dict.fromkeys(params, distribution), value=figures[-1]
            )
        )
    theirs = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )
    mine = shares(dict(settings), figures)
    assert [*mine] == [*theirs]
    assert mine["a"] is not None
    assert mine["b"] is not None
    assert mine["b"] / mine["a"] == pytest.approx(theirs["b"] / theirs["a"], rel=0.05)


def test_options_of_a_kind_are_judged_among_its_arms() -> None:
    settings: dict[str, Any] = {
        "algorithm.kind": ["fedavg"] * 6 + ["fedprox"] * 6,
        "algorithm.mu": [None] * 6 + [0.1, 1.0] * 3,
    }
    figures = [0.9, 0.8, 0.7, 0.9, 0.8, 0.7, 0.5, 0.1, 0.5, 0.1, 0.4, 0.1]
    found = {one.path: one for one in rank_settings(settings, figures, higher_is_better=True)}
    assert found["algorithm.mu"].among == "fedprox"
    assert found["algorithm.kind"].among is None
    assert found["algorithm.mu"].share == shares({"mu": [0.1, 1.0] * 3}, figures[6:])["mu"]


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
def test_what_chance_may_explain_has_no_share(settings: dict[str, Any], figures: list[Any]) -> None:
    assert [*shares(settings, figures).values()] == [None]


def test_arms_without_a_figure_do_not_count() -> None:
    settings = {"a": [0, 0, 1, 1, 5, 6], "b": [0, 1, 0, 1, 0, 1]}
    figures = [1.0, 2.0, 4.0, 5.5, None, None]
    assert shares(settings, figures) == shares(
        {path: values[:4] for path, values in settings.items()}, figures[:4]
    )


def test_many_numbers_are_compared_in_eight_groups_of_neighbours() -> None:
    numbers = [0.5 * number for number in range(24)]
    figures = [float(number) for number in range(24)]
    found = shares({"a": numbers}, figures)["a"]
    assert found == pytest.approx((8 - 1) / (24 / 3 - 1))
    assert shares({"a": [*map(str, numbers)]}, figures)["a"] is None, "names have no neighbours"


def test_true_and_one_are_two_values() -> None:
    found = shares({"a": [True, True, 1, 1, 1, 1]}, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0])["a"]
    assert found == pytest.approx(1)


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
