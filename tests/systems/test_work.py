"""How much work clients do: epochs and steps, distributions, stragglers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data.plan import PADDING, mini_batches
from fedcore.errors import SpecificationError
from fedcore.lazy import LazyModule
from fedcore.spec.local import LocalSolver
from fedcore.spec.systems import Systems
from fedcore.systems.work import Work, plan_work, pool_work
from tests.builders.specifications import QUADRATIC, specification

stats: Any = LazyModule("scipy.stats")

SIZES = np.array([25, 7, 100, 3])
ALL = np.arange(4)


def plan(
    local: dict[str, Any], systems: dict[str, Any] | None = None, clients: np.ndarray = ALL, round: int = 1
) -> tuple[list[Work], np.ndarray]:
    return plan_work(
        LocalSolver.model_validate({"lr": 0.1, **local}),
        Systems.model_validate(systems or {}),
        SIZES,
        clients,
        0,
        round,
    )


def test_an_epoch_counts_the_short_last_batch() -> None:
    work, arrives = plan({"epochs": 2, "batch_size": 10})
    assert work == [Work(6, 10), Work(2, 7), Work(20, 10), Work(2, 3)]
    assert arrives.all()


def test_full_takes_all_samples_in_one_step() -> None:
    assert plan({"epochs": 3})[0] == [Work(3, 25), Work(3, 7), Work(3, 100), Work(3, 3)]


def test_half_of_the_cohort_straggles_and_is_dropped_or_kept() -> None:
    def with_policy(policy: str) -> tuple[list[Work], np.ndarray]:
        return plan({"epochs": 10, "batch_size": 10}, {"stragglers": {"fraction": 0.5, "policy": policy}})

    dropped, kept = with_policy("drop"), with_policy("accept_partial")
    assert dropped[1].sum() == 2
    assert kept[1].all()
    full = plan({"epochs": 10, "batch_size": 10})[0]
    assert dropped[0] == kept[0]
    assert [item for item, arrives in zip(kept[0], dropped[1], strict=True) if arrives] == [
        item for item, arrives in zip(full, dropped[1], strict=True) if arrives
    ]


def test_straggler_epochs_cover_one_to_all_evenly() -> None:
    stragglers = {"stragglers": {"fraction": 1.0, "policy": "accept_partial"}}
    drawn = [plan({"epochs": 4}, stragglers, ALL, round)[0][2].steps for round in range(1, 2_001)]
    shares = np.bincount(drawn, minlength=5)[1:] / 2_000
    np.testing.assert_allclose(shares, 0.25, atol=0.04)


def test_ninety_percent_of_ten_leaves_one() -> None:
    clients = np.zeros(10, np.int64)
    _, arrives = plan({"epochs": 2}, {"stragglers": {"fraction": 0.9, "policy": "drop"}}, clients)
    assert arrives.sum() == 1


@pytest.mark.parametrize(
    ("amount", "allowed"),
    [
        ({"kind": "uniform", "low": 2, "high": 5}, {2, 3, 4, 5}),
        ({"kind": "normal", "mean": 3, "std": 50, "low": 1, "high": 6}, {1, 2, 3, 4, 5, 6}),
        ({"kind": "constant", "value": 4}, {4}),
    ],
)
def test_a_distribution_is_drawn_anew_each_round_within_its_bounds(
    amount: dict[str, Any], allowed: set[int]
) -> None:
    drawn = {
        item.steps for round in range(1, 101) for item in plan({"steps": 1}, {"steps": amount}, ALL, round)[0]
    }
    assert drawn == allowed


def test_given_histories_are_followed() -> None:
    assert [
        item.steps
        for item in plan({"steps": 1}, {"steps": {"kind": "per_client", "values": [5, 6, 7, 8]}})[0]
    ] == [5, 6, 7, 8]
    trace = {"kind": "trace", "rounds": [[1, 2, 3, 4], [9, 8, 7, 6]]}
    assert [item.steps for item in plan({"steps": 1}, {"steps": trace}, np.array([1, 3]), 2)[0]] == [8, 6]


def test_a_drawn_batch_size_is_capped_by_what_the_client_has() -> None:
    work, _ = plan({"epochs": 1}, {"batch_size": {"kind": "constant", "value": 20}})
    assert work == [Work(2, 20), Work(1, 7), Work(5, 20), Work(1, 3)]


def test_a_clients_draw_does_not_depend_on_the_rest_of_the_cohort() -> None:
    systems = {"epochs": {"kind": "uniform", "low": 1, "high": 1_000}}
    together, alone = plan({}, systems)[0], plan({}, systems, np.array([2]))[0]
    assert together[2] == alone[0]


# What the papers draw, against the distributions they name.


def fits(drawn: list[int], values: range) -> bool:
    """True if counts fit a uniform distribution on exactly `values`, by a chi-square test at one in
    1,000.
    """
    counts = [drawn.count(value) for value in values]
    return sum(counts) == len(drawn) and float(stats.chisquare(counts).pvalue) > 1e-3


def drawn_steps(local: dict[str, Any], systems: dict[str, Any], rounds: int = 1_500) -> list[int]:
    """Of client 2, alone, in each of so many rounds."""
    return [plan(local, systems, np.array([2]), round)[0][0].steps for round in range(1, rounds + 1)]


@pytest.mark.parametrize(("low", "high"), [(1, 20), (2, 5)])
def test_epochs_are_uniform_with_both_ends(low: int, high: int) -> None:
    """FedProx's U(1, E) for all, and the U(2, 5) of FedNova and FedAWARE."""
    assert fits(
        drawn_steps({}, {"epochs": {"kind": "uniform", "low": low, "high": high}}), range(low, high + 1)
    )


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.9])
def test_a_fraction_of_the_cohort_straggles_with_epochs_from_one_to_all(fraction: float) -> None:
    """FedProx, Section 5.2: of K = 10, E = 20, round(K s) do U{1..E} epochs, whoever they are, and
    the others E.
    """
    clients, sizes = np.arange(10), np.full(10, 10)
    local = LocalSolver.model_validate({"lr": 0.1, "epochs": 20, "batch_size": 10})
    full, partial, slow = [], [], np.zeros(10)
    for round in range(1, 201):
        systems = {
            policy: Systems.model_validate({"stragglers": {"fraction": fraction, "policy": policy}})
            for policy in ("drop", "accept_partial")
        }
        work, kept = plan_work(local, systems["accept_partial"], sizes, clients, 0, round)
        _, arrives = plan_work(local, systems["drop"], sizes, clients, 0, round)
        assert kept.all()
        assert (~arrives).sum() == np.rint(10 * fraction)
        slow += ~arrives
        full += [item.steps for item, fast in zip(work, arrives, strict=True) if fast]
        partial += [item.steps for item, fast in zip(work, arrives, strict=True) if not fast]
    assert set(full) == {20}
    if fraction:
        assert fits(partial, range(1, 21))
        np.testing.assert_allclose(slow / 200, fraction, atol=0.12)


def test_with_a_single_epoch_stragglers_do_a_part_of_its_steps() -> None:
    """FedProx with E = 1: ten batches, of which a straggler does U{1..10}."""
    stragglers = {"stragglers": {"fraction": 1.0, "policy": "accept_partial", "unit": "steps"}}
    assert fits(drawn_steps({"epochs": 1, "batch_size": 10}, stragglers), range(1, 11))


def test_stragglers_of_work_in_steps_draw_steps() -> None:
    for unit in ({}, {"unit": "steps"}):
        stragglers = {"stragglers": {"fraction": 1.0, "policy": "accept_partial", **unit}}
        assert fits(drawn_steps({"steps": 7}, stragglers), range(1, 8))


def test_epochs_cannot_be_drawn_where_work_is_in_steps() -> None:
    with pytest.raises(SpecificationError, match="/systems/stragglers/unit"):
        specification(
            QUADRATIC, systems={"stragglers": {"fraction": 0.5, "policy": "drop", "unit": "epochs"}}
        )


def test_a_batch_is_uniform_up_to_what_the_client_holds() -> None:
    """FedAWARE, Hybrid+: B ~ U(10, n_i), n = 100 here; a client with seven samples takes them
    all.
    """
    batch = {"batch_size": {"kind": "uniform", "low": 10, "high": "samples"}}
    sizes = [plan({"steps": 1}, batch, np.array([2]), round)[0][0].batch_size for round in range(1, 4_001)]
    assert fits(sizes, range(10, 101))
    assert {plan({"steps": 1}, batch, np.array([1]), round)[0][0].batch_size for round in range(1, 50)} == {7}


def test_a_batch_above_what_the_client_holds_is_all_of_it() -> None:
    batch = {"batch_size": {"kind": "uniform", "low": 50, "high": 149}}
    sizes = [plan({"steps": 1}, batch, np.array([2]), round)[0][0].batch_size for round in range(1, 1_001)]
    assert min(sizes) < 60
    assert max(sizes) == 100
    assert np.mean(np.array(sizes) == 100) == pytest.approx(0.5, abs=0.06)


def test_gaussian_steps_are_rounded_and_clipped() -> None:
    """FedNova, Fig. 2 (b): mean 30, clipped to [1, 96], anew in each round."""
    mean, std, low, high = 30, 20, 1, 96
    steps = drawn_steps(
        {"steps": 1},
        {"steps": {"kind": "normal", "mean": mean, "std": std, "low": low, "high": high}},
        rounds=4_000,
    )
    assert min(steps) == low
    assert max(steps) <= high
    edges = np.array([-np.inf, *np.arange(low + 9.5, high - 1, 10), np.inf])
    expected = np.diff(stats.norm(mean, std).cdf(edges)) * len(steps)
    counts = np.histogram(steps, np.array([low, *edges[1:-1], high]))[0]
    assert float(stats.chisquare(counts, expected).pvalue) > 1e-3
    assert steps.count(low) / len(steps) == pytest.approx(stats.norm(mean, std).cdf(low + 0.5), abs=0.015)


AMOUNTS = st.one_of(
    st.integers(1, 30).map(lambda value: {"kind": "constant", "value": value}),
    st.tuples(st.integers(1, 9), st.integers(0, 9)).map(
        lambda ends: {"kind": "uniform", "low": ends[0], "high": sum(ends)}
    ),
    st.floats(0.5, 20).map(lambda mean: {"kind": "normal", "mean": mean, "std": 30.0, "high": 40}),
)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    unit=st.sampled_from(["epochs", "steps"]),
    length=AMOUNTS,
    batch=AMOUNTS,
    fraction=st.floats(0, 1),
    policy=st.sampled_from(["drop", "accept_partial"]),
    round=st.integers(1, 1_000),
)
def test_every_plan_is_work_that_its_client_can_do(
    sizes: list[int], unit: str, length: Any, batch: Any, fraction: float, policy: str, round: int
) -> None:
    systems = {unit: length, "batch_size": batch, "stragglers": {"fraction": fraction, "policy": policy}}
    spec, clients = Systems.model_validate(systems), np.arange(len(sizes))
    work, arrives = plan_work(
        LocalSolver.model_validate({"lr": 0.1}), spec, np.array(sizes), clients, 0, round
    )
    assert all(
        1 <= item.batch_size <= size and item.steps >= 1 for item, size in zip(work, sizes, strict=True)
    )
    assert arrives.sum() == (np.rint(len(sizes) * (1 - fraction)) if policy == "drop" else len(sizes))
    again, _ = plan_work(LocalSolver.model_validate({"lr": 0.1}), spec, np.array(sizes), clients, 0, round)
    assert work == again
    batches = [
        mini_batches(0, round, client, size, item)
        for client, (item, size) in enumerate(zip(work, sizes, strict=True))
    ]
    for rows, item, size in zip(batches, work, sizes, strict=True):
        assert rows.shape == (item.steps, item.batch_size)
        epoch = rows[: -(-size // item.batch_size)]
        seen = epoch[epoch != PADDING].tolist()
        assert len(set(seen)) == len(seen)
        assert len(epoch) < -(-size // item.batch_size) or sorted(seen) == [*range(size)]


def test_pooled_work_has_each_step_of_each_client_first_epochs_first() -> None:
    """25 samples in batches of 10 are 10, 10, 5; 4 samples in batches of 3 are 3, 1."""
    work = [Work(5, 10), Work(2, 3)]
    pooled = pool_work(work, np.array([25, 4]), 100, whole=False)
    assert pooled == Work(7, 10, (10, 10, 5, 3, 1, 10, 10))


def test_pooled_work_on_full_batches_is_on_the_whole_set() -> None:
    work = [Work(5, 25), Work(2, 4)]
    assert pool_work(work, np.array([25, 4]), 29, whole=True) == Work(7, 29)
    assert pool_work(work[:1], np.array([25]), 25, whole=False) == Work(5, 25)
