"""Schedules of the local step size."""

from typing import Any

import numpy as np
import pytest
import torch

from fedcore.block import kind_of
from fedcore.solvers.schedules import SCHEDULES, GeometricSizes, HarmonicSizes, LrSchedule, StepSizes
from fedcore.spec.local import LocalSolver


def local(**schedule: Any) -> LocalSolver:
    rate = {} if schedule["kind"] == "inverse_time" else {"lr": 0.5}
    return LocalSolver.model_validate({**rate, "epochs": 1, "lr_schedule": schedule})


def test_step_decay_starts_after_its_fraction_of_the_rounds() -> None:
    solver = local(kind="step", at=[0.5, 0.75], factor=0.1)
    rates = [solver.step_sizes(8, round, 0)[3] for round in range(1, 9)]
    np.testing.assert_allclose(rates, [0.5] * 4 + [0.05] * 2 + [0.005] * 2)


def test_step_decay_starts_after_exactly_its_hundredths_of_a_hundred_rounds() -> None:
    for percent in range(101):
        solver = local(kind="step", at=[percent / 100], factor=0.1)
        rates = [solver.step_sizes(100, round, 0)[0] for round in range(1, 101)]
        np.testing.assert_allclose(rates, [0.5] * percent + [0.05] * (100 - percent))


def test_exponential_decay_starts_over_in_every_round() -> None:
    sizes = local(kind="exponential", gamma=0.9).step_sizes(8, 5, 100)
    np.testing.assert_allclose([sizes[k] for k in range(3)], [0.5, 0.45, 0.405])


def test_exponential_decay_may_count_rounds() -> None:
    """eta 0.99^(t - 1) in every local step of round t, for more rounds than `step` takes fractions."""
    solver = local(kind="exponential", gamma=0.99, counts="rounds")
    rates = [solver.step_sizes(500, round, 99)[3] for round in range(1, 501)]
    np.testing.assert_allclose(rates, 0.5 * 0.99 ** np.arange(500), rtol=1e-12)


def test_step_decay_every_few_rounds_is_pytorchs() -> None:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, step_size=3, gamma=0.7)
    expected = []
    for _ in range(20):
        expected.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    solver = local(kind="step", every=3, factor=0.7)
    assert [solver.step_sizes(20, round, 0)[2] for round in range(1, 21)] == pytest.approx(
        expected, rel=1e-14
    )
    assert solver.lr_schedule.conflict(20, 40, 20) is None


@pytest.mark.parametrize("unit", [{}, {"at": [0.5], "every": 3}])
def test_step_decay_has_one_unit(unit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="either `at`, fractions of all rounds, or `every`"):
        local(kind="step", factor=0.1, **unit)


def test_inverse_time_may_count_rounds() -> None:
    solver = local(kind="inverse_time", mu=2 / 0.3, gamma=1, counts="rounds")
    np.testing.assert_allclose([solver.step_sizes(8, round, 99)[4] for round in (1, 2, 5)], [0.3, 0.15, 0.06])


def test_inverse_time_counts_local_steps_over_all_rounds() -> None:
    sizes = local(kind="inverse_time", mu=0.5, gamma=8).step_sizes(8, 3, 20)
    np.testing.assert_allclose([sizes[k] for k in range(3)], [2 / (0.5 * (8 + t)) for t in (20, 21, 22)])


@pytest.mark.parametrize("sizes", [StepSizes(0.5), GeometricSizes(0.5, 0.9), HarmonicSizes(0.5, 7.0)])
def test_step_sizes_come_one_by_one_or_together(sizes: StepSizes) -> None:
    np.testing.assert_array_equal(sizes.first_of(5), [sizes[k] for k in range(5)])


def test_cosine_annealing_is_pytorchs() -> None:
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=10, eta_min=0.05)
    expected = []
    for _ in range(10):
        expected.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    solver = local(kind="cosine", floor=0.1)
    rates = [solver.step_sizes(10, round, 0)[3] for round in range(1, 11)]
    assert rates == pytest.approx(expected, rel=1e-14)


def test_warm_up_rises_linearly_and_ends_at_the_step_size() -> None:
    solver = local(kind="linear_warmup", rounds=4)
    rates = [solver.step_sizes(7, round, 0)[2] for round in range(1, 8)]
    np.testing.assert_allclose(rates, [0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("kind", ["constant", "exponential", "inverse_time", "linear_warmup"])
def test_a_run_can_be_extended_where_the_step_size_does_not_depend_on_its_length(kind: str) -> None:
    (member,) = (member for member in SCHEDULES if kind_of(member) == kind)
    schedule = member.model_validate({"kind": kind, **member.example})
    assert schedule.conflict(10, 20, 10) is None


def test_a_run_whose_step_size_depends_on_its_length_says_where_it_would_differ() -> None:
    schedule = local(kind="cosine").lr_schedule
    assert schedule.conflict(10, 20, 1) is None
    assert schedule.conflict(10, 20, 2) == (
        "its step size in round 2 depends on the number of rounds (local.lr_schedule)"
    )


@pytest.mark.parametrize("member", SCHEDULES.builtin, ids=kind_of)
def test_a_schedule_has_an_example(member: type[LrSchedule]) -> None:
    schedule = member.model_validate({"kind": kind_of(member), **member.example})
    assert schedule.sizes(0.1, 1, 10, 0)[0] > 0
