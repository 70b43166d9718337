"""The effort of a local solver against FedNova's closed forms."""

from typing import Any

import numpy as np
import pytest

from fedcore.algorithms.fedprox import Proximal
from fedcore.algorithms.scaffold import ControlVariates
from fedcore.core import Rule, Solver
from fedcore.engine.local_solver import normaliser
from fedcore.solvers.optimisers import AdamSolver, MomentumSolver
from fedcore.solvers.schedules import GeometricSizes, StepSizes

TAU = np.array([1, 2, 5, 16, 37])
ETA, MU, RHO, GAMMA = 0.05, 0.7, 0.9, 0.95
ALPHA = ETA * MU
CLOSED_FORMS: dict[str, tuple[Rule, Solver, StepSizes, Any]] = {
    "vanilla": (Rule(), Solver(), StepSizes(ETA), TAU),
    "proximal solver": (Rule(), Solver(prox_mu=MU), StepSizes(ETA), (1 - (1 - ALPHA) ** TAU) / ALPHA),
    "proximal rule": (Proximal(MU), Solver(), StepSizes(ETA), (1 - (1 - ALPHA) ** TAU) / ALPHA),
    "momentum": (
        Rule(),
        MomentumSolver(momentum=RHO),
        StepSizes(ETA),
        (TAU - RHO * (1 - RHO**TAU) / (1 - RHO)) / (1 - RHO),
    ),
    "decayed": (Rule(), Solver(), GeometricSizes(ETA, GAMMA), (1 - GAMMA**TAU) / (1 - GAMMA)),
    "control variates": (ControlVariates(), Solver(), StepSizes(ETA), TAU),
    "weight decay": (Rule(), Solver(weight_decay=0.1), StepSizes(ETA), TAU),
}


@pytest.mark.parametrize("case", CLOSED_FORMS)
def test_effort_is_the_closed_form_of_the_solver(case: str) -> None:
    rule, solver, sizes, expected = CLOSED_FORMS[case]
    np.testing.assert_allclose(normaliser(rule, solver, sizes, TAU), expected, rtol=1e-12)


@pytest.mark.parametrize("solver", [AdamSolver(), Solver(clip_norm=1.0)], ids=repr)
def test_a_solver_that_is_not_linear_has_no_normaliser(solver: Solver) -> None:
    assert np.isnan(normaliser(Rule(), solver, StepSizes(ETA), TAU)).all()
