"""Step sizes, and the effort of a local solver against FedNova's closed forms."""

from typing import Any

import numpy as np
import pytest

from fedcore.algorithms.fedprox import Proximal
from fedcore.algorithms.scaffold import ControlVariates
from fedcore.core import ClientRule, Solver
from fedcore.engine.local_solver import normaliser
from fedcore.solvers.optimisers import MomentumSolver
from fedcore.solvers.schedules import GeometricSizes, HarmonicSizes, StepSizes
from fedcore.spec.local import LocalSolver

TAU = np.array([1, 2, 5, 16, 37])
ETA, MU, RHO, GAMMA = 0.05, 0.7, 0.9, 0.95
ALPHA = ETA * MU
CLOSED_FORMS: dict[str, tuple[ClientRule, Solver, StepSizes, Any]] = {
    "vanilla": (ClientRule(), Solver(), StepSizes(ETA), TAU),
    "proximal solver": (ClientRule(), Solver(prox_mu=MU), StepSizes(ETA), (1 - (1 - ALPHA) ** TAU) / ALPHA),
    "proximal rule": (Proximal(MU), Solver(), StepSizes(ETA), (1 - (1 - ALPHA) ** TAU) / ALPHA),
    "momentum": (
        ClientRule(),
        MomentumSolver(momentum=RHO),
        StepSizes(ETA),
        (TAU - RHO * (1 - RHO**TAU) / (1 - RHO)) / (1 - RHO),
    ),
    "decayed": (ClientRule(), Solver(), GeometricSizes(ETA, GAMMA), (1 - GAMMA**TAU) / (1 - GAMMA)),
    "control variates": (ControlVariates(), Solver(), StepSizes(ETA), TAU),
    "weight decay": (ClientRule(), Solver(weight_decay=0.1), StepSizes(ETA), TAU),
}


@pytest.mark.parametrize("case", CLOSED_FORMS)
def test_effort_is_the_closed_form_of_the_solver(case: str) -> None:
    rule, solver, sizes, expected = CLOSED_FORMS[case]
    np.testing.assert_allclose(normaliser(rule, solver, sizes, TAU), expected, rtol=1e-12)


def local(**schedule: Any) -> LocalSolver:
    rate = {} if schedule["kind"] == "inverse_time" else {"lr": 0.5}
    return LocalSolver.model_validate({**rate, "epochs": 1, "lr_schedule": schedule})


def test_step_decay_starts_after_its_fraction_of_the_rounds() -> None:
    solver = local(kind="step", at=[0.5, 0.75], factor=0.1)
    rates = [solver.step_sizes(8, round, 0)[3] for round in range(1, 9)]
    np.testing.assert_allclose(rates, [0.5] * 4 + [0.05] * 2 + [0.005] * 2)


@pytest.mark.parametrize("percent", range(101))
def test_step_decay_starts_after_exactly_its_hundredths_of_a_hundred_rounds(percent: int) -> None:
    solver = local(kind="step", at=[percent / 100], factor=0.1)
    rates = [solver.step_sizes(100, round, 0)[0] for round in range(1, 101)]
    np.testing.assert_allclose(rates, [0.5] * percent + [0.05] * (100 - percent))


def test_exponential_decay_starts_over_in_every_round() -> None:
    sizes = local(kind="exponential", gamma=0.9).step_sizes(8, 5, 100)
    np.testing.assert_allclose([sizes[k] for k in range(3)], [0.5, 0.45, 0.405])


def test_inverse_time_may_count_rounds() -> None:
    solver = local(kind="inverse_time", mu=2 / 0.3, gamma=1, counts="rounds")
    np.testing.assert_allclose([solver.step_sizes(8, round, 99)[4] for round in (1, 2, 5)], [0.3, 0.15, 0.06])


def test_inverse_time_counts_local_steps_over_all_rounds() -> None:
    sizes = local(kind="inverse_time", mu=0.5, gamma=8).step_sizes(8, 3, 20)
    np.testing.assert_allclose([sizes[k] for k in range(3)], [2 / (0.5 * (8 + t)) for t in (20, 21, 22)])


@pytest.mark.parametrize("sizes", [StepSizes(0.5), GeometricSizes(0.5, 0.9), HarmonicSizes(0.5, 7.0)])
def test_step_sizes_come_one_by_one_or_together(sizes: StepSizes) -> None:
    np.testing.assert_array_equal(sizes.first_of(5), [sizes[k] for k in range(5)])
