"""The local solver over a round: its state, its normaliser ||a_i||_1, and its recursion under a rule
of affine form.

With g the gradient of the data's part of the loss, training by SGD with momentum under a rule that
declares an `AffineForm` is

    v <- momentum v + g + shrink y + pull (y - x) + offset;   y <- y - size v
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from fedcore.core import Algorithm, ClientContext, Rule, Solver, Vectors, is_linear
from fedcore.solvers.schedules import StepSizes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def initial_state(solver: Solver, y: Tensor) -> Mapping[str, Tensor]:
    """Return the solver's state before the first step, each vector of the shape of y [..., D]."""
    return {name: torch.full_like(y, value) for name, value in solver.start().items()}


def step_size_scales(rule: Rule, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """[M] the rule's factors of the step sizes of clients that take `steps` [M] local steps."""
    return 1 / steps if rule.divides_step_size else np.ones(len(steps))


def normaliser(rule: Rule, solver: Solver, sizes: StepSizes, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """||a_i||_1 [M] for tau_i = `steps` [M]: how far the solver travels, over eta, when every
    gradient is 1.

    FedNova, Section III. There is no formula: the solver itself is run on one number. Weight decay
    is part of the gradient there, so it does not count, and neither does an offset. The direction of
    a rule without affine form takes the place of the gradient. NaN for a solver that is not linear
    in the gradients.
    """
    if not len(steps):
        return np.zeros(0)
    if not is_linear(solver):
        return np.full(len(steps), nan)
    form = rule.affine_form()
    solver = replace(solver, weight_decay=0.0, prox_mu=solver.prox_mu + (form.mu if form else 0.0))
    # Powers of two, so that draws of tau_i that vary from round to round share a table.
    longest = 1 << int(steps.max() - 1).bit_length()
    return _travel(solver, sizes, longest)[steps - 1] * step_size_scales(rule, steps)


@lru_cache(maxsize=64)
def _travel(solver: Solver, sizes: StepSizes, steps: int) -> NDArray[np.float64]:
    y, state, travelled = cast("Any", 0.0), cast("Vectors", solver.start()), []
    for k in range(steps):
        step, state = solver.step(1.0 + solver.prox_mu * y, y, state, k)
        y = y - sizes[k] * step
        travelled.append(-y / sizes.first)
    return np.array(travelled)


class Factors(NamedTuple):
    """The factors of the recursion, constant over a round."""

    pull: float
    shrink: float
    momentum: float


def factors(algorithm: Algorithm, l2: float) -> Factors:
    """Return the factors of an algorithm that `is_affine`, for a client whose loss contains
    l2/2 |y|^2 beside the data's part.
    """
    solver, form, shrink = algorithm.solver, algorithm.rule.affine_form(), l2
    momentum = solver.momentum_form()
    assert form is not None
    assert momentum is not None
    towards = form.mu
    if "gradient_at_x" in algorithm.rule.needs():
        # With the gradient at x the share that l2 has in it is taken away.
        towards, shrink = towards + l2, 0.0
    return Factors(towards + solver.prox_mu, shrink + solver.weight_decay, momentum)


def has_offset(rule: Rule) -> bool:
    """Return True if an affine rule has an offset."""
    form = rule.affine_form()
    return form is not None and form.has_offset


def offsets(rule: Rule, local: ClientContext) -> Tensor:
    """Return the offsets [M, D] of an affine rule, for the M > 0 clients of `local`."""
    start = local.x.expand(len(local.steps), -1)
    return rule.direction(start.new_zeros(start.shape), start, local)
