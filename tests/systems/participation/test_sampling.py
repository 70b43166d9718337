"""Participation schemes: who is drawn, and that the weights make the aggregate what the scheme
promises.
"""

import tracemalloc
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedcore.random import generator
from fedcore.systems.availability import RandomlyAvailable, TraceAvailable
from fedcore.systems.cohorts import Drawn, draw, iterate_factor, weights
from fedcore.systems.participation import AnyParticipation

SHARE = np.array([0.4, 0.3, 0.2, 0.1])
VALUES = np.array([1.0, -2.0, 5.0, 3.0])


def scheme(kind: str, **fields: Any) -> AnyParticipation:
    return TypeAdapter(AnyParticipation).validate_python({"kind": kind, **fields})


def mean_aggregate(chosen: AnyParticipation, rounds: int = 20_000) -> float:
    total = 0.0
    for round in range(1, rounds + 1):
        drawn = draw(chosen, SHARE, seed=5, round=round)
        total += float(weights(chosen, drawn, SHARE, None) @ VALUES[drawn.clients])
    return total / rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        scheme("with_replacement", clients_per_round=2),
        scheme("without_replacement", clients_per_round=2),
        scheme("uniform", clients_per_round=2, weighting="unbiased"),
        scheme("bernoulli", probability=0.5, weighting="unbiased"),
        scheme("bernoulli", probability=[0.9, 0.3, 0.5, 0.2], weighting="unbiased"),
    ],
    ids=["S1", "S2", "unbiased", "bernoulli", "bernoulli per client"],
)
def test_the_expected_aggregate_is_that_of_full_participation(chosen: AnyParticipation) -> None:
    assert mean_aggregate(chosen) == pytest.approx(SHARE @ VALUES, abs=0.05)


def test_s1_weighs_a_client_by_how_often_it_was_drawn() -> None:
    chosen = scheme("with_replacement", clients_per_round=3)
    drawn = Drawn(np.array([1, 3]), np.array([2, 1]))
    np.testing.assert_allclose(weights(chosen, drawn, SHARE, None), [2 / 3, 1 / 3])


def test_s2_weighs_by_n_over_k_and_scales_the_iterate_by_the_sum_of_its_weights() -> None:
    chosen = scheme("without_replacement", clients_per_round=2)
    weight = weights(chosen, Drawn(np.array([0, 3]), np.array([1, 1])), SHARE, None)
    np.testing.assert_allclose(weight, [0.8, 0.2])
    assert iterate_factor(chosen, weight) == pytest.approx(1.0)
    assert iterate_factor(chosen, np.array([0.8, 0.6])) == pytest.approx(1.4)
    assert (
        iterate_factor(
            scheme("without_replacement", clients_per_round=2, weighting="unbiased"), np.array([0.8, 0.6])
        )
        == 1.0
    )


def test_the_original_scheme_leaves_the_absent_where_they_were() -> None:
    chosen = scheme("uniform", clients_per_round=2, weighting="original")
    weight = weights(chosen, Drawn(np.array([0, 3]), np.array([1, 1])), SHARE, None)
    np.testing.assert_array_equal(weight, [0.4, 0.1])
    assert iterate_factor(chosen, weight) == 1.0


def test_a_trace_is_followed_and_repeats_count() -> None:
    chosen = scheme("trace", rounds=[[2, 0], [3, 3, 1]])
    drawn = draw(chosen, SHARE, seed=0, round=2)
    assert (drawn.clients.tolist(), drawn.times.tolist()) == ([1, 3], [1, 2])
    np.testing.assert_allclose(weights(chosen, drawn, SHARE, None), [0.6, 0.4])


def test_the_specification_outranks_the_algorithm_and_the_algorithm_the_scheme() -> None:
    drawn = Drawn(np.array([0, 1]), np.array([1, 1]))
    np.testing.assert_allclose(weights(scheme("full"), drawn, SHARE, "uniform"), [0.5, 0.5])
    np.testing.assert_allclose(
        weights(scheme("full", weighting="samples"), drawn, SHARE, "uniform"), [4 / 7, 3 / 7]
    )


def test_a_fraction_draws_its_share_and_at_least_one() -> None:
    for fraction, expected in ((0.5, 2), (0.01, 1), (1.0, 4)):
        assert len(draw(scheme("uniform", fraction=fraction), SHARE, seed=0, round=1).clients) == expected


def test_cohorts_differ_between_rounds_and_seeds_and_repeat_for_the_same() -> None:
    chosen = scheme("uniform", clients_per_round=10)
    share = np.full(1_000, 1e-3)
    cohorts = {
        (seed, round): tuple(draw(chosen, share, seed, round).clients) for seed in (0, 1) for round in (1, 2)
    }
    assert len(set(cohorts.values())) == 4
    assert tuple(draw(chosen, share, 1, 2).clients) == cohorts[1, 2]


def test_bernoulli_takes_each_client_with_its_probability_whatever_the_others_do() -> None:
    chosen = scheme("bernoulli", probability=[1.0, 0.5, 0.25, 0.01])
    present = np.zeros((4_000, 4), bool)
    for round, row in enumerate(present, 1):
        row[draw(chosen, SHARE, seed=3, round=round).clients] = True
    np.testing.assert_allclose(present.mean(0), [1.0, 0.5, 0.25, 0.01], atol=0.03)
    assert (present[:, 1] & present[:, 2]).mean() == pytest.approx(0.125, abs=0.02)


def test_without_replacement_the_average_varies_less_by_n_minus_k_over_n_minus_1() -> None:
    """Li et al.: C of S2 is that of S1 times (N - K) / (N - 1), where all p_k are equal."""
    values, share = np.arange(8.0), np.full(8, 1 / 8)
    varies = {}
    for kind in ("with_replacement", "without_replacement"):
        chosen = scheme(kind, clients_per_round=4)
        cohorts = (draw(chosen, share, seed=3, round=round) for round in range(1, 4_001))
        varies[kind] = np.var(
            [weights(chosen, drawn, share, None) @ values[drawn.clients] for drawn in cohorts]
        )
    assert varies["without_replacement"] / varies["with_replacement"] == pytest.approx(
        (8 - 4) / (8 - 1), rel=0.1
    )


def test_bernoulli_may_draw_nobody() -> None:
    sizes = {
        len(draw(scheme("bernoulli", probability=0.1), SHARE, seed=0, round=round).clients)
        for round in range(1, 50)
    }
    assert 0 in sizes


@pytest.mark.parametrize(
    ("chosen", "most"),
    [
        (scheme("full"), 3),
        (scheme("uniform", clients_per_round=2), 2),
        (scheme("uniform", clients_per_round=4), 3),
        (scheme("with_replacement", clients_per_round=9), 3),
        (scheme("without_replacement", clients_per_round=2, weighting="uniform"), 2),
        (scheme("by_share", clients_per_round=2), 2),
        (scheme("by_share", clients_per_round=4), 3),
        (scheme("bernoulli", probability=1.0), 3),
        (scheme("trace", rounds=[[0, 2, 2, 3]] * 30), 2),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_only_those_who_can_be_reached_are_drawn(chosen: AnyParticipation, most: int) -> None:
    reachable = TraceAvailable(np.array([0, 1, 3]))
    cohorts = [draw(chosen, SHARE, seed=1, round=round, reachable=reachable) for round in range(1, 31)]
    assert max(len(drawn.clients) for drawn in cohorts) == most
    assert {int(client) for drawn in cohorts for client in drawn.clients} <= {0, 1, 3}
    assert not len(
        draw(chosen, SHARE, seed=1, round=1, reachable=TraceAvailable(np.array([], np.int64))).clients
    )


def test_s1_draws_from_the_reachable_by_their_shares() -> None:
    chosen = scheme("with_replacement", clients_per_round=4_000)
    drawn = draw(chosen, SHARE, seed=0, round=1, reachable=TraceAvailable(np.array([0, 3])))
    np.testing.assert_allclose(drawn.times / 4_000, [0.8, 0.2], atol=0.03)


def test_by_share_weighs_all_alike_and_draws_nobody_twice() -> None:
    chosen = scheme("by_share", clients_per_round=3)
    for round in range(1, 20):
        drawn = draw(chosen, SHARE, seed=2, round=round)
        assert len(drawn.clients) == 3
        np.testing.assert_allclose(weights(chosen, drawn, SHARE, None), 1 / 3)


def test_by_share_draws_nobody_who_holds_nothing() -> None:
    assert draw(
        scheme("by_share", clients_per_round=2), np.array([0.5, 0.0, 0.5]), seed=0, round=1
    ).clients.tolist() == [0, 2]
    nobody = draw(
        scheme("by_share", clients_per_round=1),
        np.array([1.0, 0.0]),
        seed=0,
        round=1,
        reachable=TraceAvailable(np.array([1])),
    )
    assert not len(nobody.clients)


def test_s1_draws_nobody_from_those_who_hold_nothing() -> None:
    share = np.array([1.0, 0.0])
    assert not len(
        draw(
            scheme("with_replacement", clients_per_round=3),
            share,
            seed=0,
            round=1,
            reachable=TraceAvailable(np.array([1])),
        ).clients
    )


def test_reaching_everybody_is_having_no_availability() -> None:
    for chosen in (scheme("uniform", clients_per_round=2), scheme("with_replacement", clients_per_round=3)):
        everybody = draw(chosen, SHARE, seed=1, round=4, reachable=TraceAvailable(np.arange(4)))
        assert everybody.clients.tolist() == draw(chosen, SHARE, seed=1, round=4).clients.tolist()


def test_one_probability_for_all_makes_every_cohort_as_likely_as_independent_lots_do() -> None:
    rounds = 8_000
    cohorts = Counter(
        tuple(draw(scheme("bernoulli", probability=0.3), SHARE, seed=2, round=round).clients)
        for round in range(rounds)
    )
    squares = 0.0
    for present in product((False, True), repeat=4):
        expected = rounds * float(np.prod(np.where(present, 0.3, 0.7)))
        squares += (cohorts[tuple(np.flatnonzero(present))] - expected) ** 2 / expected
    assert squares < 37.7, "chi-square, 15 degrees of freedom: beyond this once in a thousand"


def test_s1_draws_those_that_numpy_would_draw() -> None:
    share = np.random.default_rng(0).dirichlet(np.full(500, 0.3))
    for round in (1, 2):
        chosen = generator(4, "cohort", round).choice(500, 60, p=share)
        assert (
            draw(scheme("with_replacement", clients_per_round=60), share, 4, round).clients.tolist()
            == np.unique(chosen).tolist()
        )


@pytest.mark.parametrize("kind", ["uniform", "with_replacement", "without_replacement", "bernoulli"])
def test_a_draw_from_a_million_touches_only_those_it_draws(kind: str) -> None:
    chosen = scheme(kind, **({"probability": 1e-4} if kind == "bernoulli" else {"clients_per_round": 100}))
    share = np.full(1_000_000, 1e-6)
    draw(chosen, share, seed=0, round=1)
    tracemalloc.start()
    try:
        drawn = draw(chosen, share, seed=0, round=2)
        weights(chosen, drawn, share, None)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert 50 < len(drawn.clients) < 150


class Asked(TraceAvailable):
    """Those given, looked for among so many clients drawn blindly."""

    blind = 1

    def oversample_size(self, wanted: int) -> int | None:
        return self.blind


class AskedOften(Asked):
    blind = 3


@pytest.mark.parametrize("there", [Asked, pytest.param(AskedOften, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("chosen", "pairs"),
    [
        (scheme("uniform", clients_per_round=2), {(0, 1): 1 / 3, (0, 3): 1 / 3, (1, 3): 1 / 3}),
        (
            scheme("with_replacement", clients_per_round=2),
            {(0, 0): 0.25, (1, 1): 0.1406, (3, 3): 0.0156, (0, 1): 0.375, (0, 3): 0.125, (1, 3): 0.09375},
        ),
        (scheme("by_share", clients_per_round=2), {(0, 1): 0.675, (0, 3): 0.19643, (1, 3): 0.12857}),
    ],
    ids=["uniform", "S1", "by share"],
)
def test_drawing_blindly_makes_every_cohort_as_likely_as_drawing_from_a_list(
    chosen: AnyParticipation, pairs: dict[tuple[int, int], float], there: type[Asked]
) -> None:
    rounds, reachable = 6_000, there(np.array([0, 1, 3]))
    drawn = (draw(chosen, SHARE, seed=4, round=round, reachable=reachable) for round in range(rounds))
    cohorts = Counter(tuple(np.repeat(cohort.clients, cohort.times).tolist()) for cohort in drawn)
    squares = sum((cohorts[pair] - rounds * odds) ** 2 / (rounds * odds) for pair, odds in pairs.items())
    assert cohorts.keys() <= pairs.keys()
    assert squares < 20.5, "chi-square, 5 degrees of freedom: beyond this once in a thousand"


class Shy(RandomlyAvailable):
    """Never asked for the whole list."""

    def all(self) -> NDArray[np.int64]:
        raise AssertionError


@pytest.mark.parametrize("kind", ["uniform", "with_replacement", "by_share", "without_replacement"])
def test_few_are_asked_where_few_are_wanted(kind: str) -> None:
    share = np.full(100_000, 1e-5)
    there = Shy(0.4, 100_000, seed=0, round=2)
    drawn = draw(scheme(kind, clients_per_round=100), share, seed=0, round=2, reachable=there)
    assert drawn.times.sum() == 100
    assert np.isin(drawn.clients, RandomlyAvailable(0.4, 100_000, seed=0, round=2).all()).all()


def test_every_client_is_asked_where_few_can_be_reached() -> None:
    there = RandomlyAvailable(0.001, 20_000, seed=0, round=1)
    drawn = draw(
        scheme("uniform", clients_per_round=100),
        np.full(20_000, 1 / 20_000),
        seed=0,
        round=1,
        reachable=there,
    )
    assert drawn.clients.tolist() == there.all().tolist()


def test_small_chances_of_ones_own_make_every_cohort_as_likely_as_independent_lots_do() -> None:
    chances = [0.02, 0.005, 0.015]
    rounds, chosen = 12_000, scheme("bernoulli", probability=chances)
    cohorts = Counter(
        tuple(draw(chosen, SHARE[:3], seed=6, round=round).clients.tolist()) for round in range(rounds)
    )
    squares = 0.0
    for cohort in ((), (0,), (1,), (2,)):
        expected = rounds * float(
            np.prod([chance if client in cohort else 1 - chance for client, chance in enumerate(chances)])
        )
        squares += (cohorts[cohort] - expected) ** 2 / expected
    assert squares < 18.5, "chi-square, 4 degrees of freedom: beyond this once in a thousand"
    assert 1 <= sum(cohorts[pair] for pair in ((0, 1), (0, 2), (1, 2))) <= 15, "5.6 are expected"
