"""How much work clients do: epochs and steps, distributions, stragglers."""

from typing import Any

import numpy as np
import pytest

from fedcore.data.plan import Work
from fedcore.spec.local import LocalSolver
from fedcore.spec.systems import Systems
from fedcore.systems.work import plan_work

SIZES = np.array([25, 7, 100, 3])
ALL = np.arange(4)


def plan(
    local: dict[str, Any], systems: dict[str, Any] | None = None, clients: np.ndarray = ALL, round: int = 1
) -> tuple[list[Work], np.ndarray]:
    return plan_work(LocalSolver.model_validate({"lr": 0.1, **local}), Systems.model_validate(systems or {}), SIZES, clients, 0, round)


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
def test_a_distribution_is_drawn_anew_each_round_within_its_bounds(amount: dict[str, Any], allowed: set[int]) -> None:
    drawn = {item.steps for round in range(1, 101) for item in plan({"steps": 1}, {"steps": amount}, ALL, round)[0]}
    assert drawn == allowed


def test_given_histories_are_followed() -> None:
    assert [item.steps for item in plan({"steps": 1}, {"steps": {"kind": "per_client", "values": [5, 6, 7, 8]}})[0]] == [5, 6, 7, 8]
    trace = {"kind": "trace", "rounds": [[1, 2, 3, 4], [9, 8, 7, 6]]}
    assert [item.steps for item in plan({"steps": 1}, {"steps": trace}, np.array([1, 3]), 2)[0]] == [8, 6]


def test_a_drawn_batch_size_is_capped_by_what_the_client_has() -> None:
    work, _ = plan({"epochs": 1}, {"batch_size": {"kind": "constant", "value": 20}})
    assert work == [Work(2, 20), Work(1, 7), Work(5, 20), Work(1, 3)]


def test_a_clients_draw_does_not_depend_on_the_rest_of_the_cohort() -> None:
    systems = {"epochs": {"kind": "uniform", "low": 1, "high": 1_000}}
    together, alone = plan({}, systems)[0], plan({}, systems, np.array([2]))[0]
    assert together[2] == alone[0]
