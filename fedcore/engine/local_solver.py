"""The local solver over a round: step sizes, the normaliser ||a_i||_1 that they give it, and its
recursion under a rule of affine form.

With g the gradient of the data's part of the loss, training under a rule that declares an
`AffineForm` is

    v <- momentum v + g + shrink y + pull (y - x) + offset;   y <- y - size v
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from fedcore.core import Algorithm, ClientContext, ClientRule, Solver
from fedcore.spec.local import ExponentialLr, InverseTimeLr, LocalSolver, StepLr

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepSizes:
    """eta_k for the local steps k = 0, 1, ... of one round: first * decay^k, or first * offset /
    (offset + k).
    """

    first: float
    decay: float = 1.0
    offset: float | None = None

    def first_of(self, steps: int) -> NDArray[np.float64]:
        """eta_k [steps] for k = 0 ... steps - 1."""
        return (
            np.array([self[k] for k in range(steps)])
            if self.offset or self.decay != 1.0
            else np.full(steps, self.first)
        )

    def __getitem__(self, k: int) -> float:
        if self.offset is not None:
            return self.first * self.offset / (self.offset + k)
        return self.first if self.decay == 1.0 else self.first * self.decay**k


def step_sizes(local: LocalSolver, rounds: int, round: int, clock: int) -> StepSizes:
    """The step sizes of a round (counted from 1, of `rounds`).

    `clock` counts the local steps of all rounds before it.
    """
    match local.lr_schedule:
        case StepLr() as schedule:
            passed = sum(round > last for last in schedule.last_rounds(rounds))
            return StepSizes(_rate(local) * schedule.factor**passed)
        case ExponentialLr(gamma=gamma):
            return StepSizes(_rate(local), decay=gamma)
        case InverseTimeLr(mu=mu, gamma=gamma, counts="rounds"):
            return StepSizes(2 / (mu * (gamma + round - 1)))
        case InverseTimeLr(mu=mu, gamma=gamma):
            return StepSizes(2 / (mu * (gamma + clock)), offset=gamma + clock)
        case _:
            return StepSizes(_rate(local))


def step_size_scales(rule: ClientRule, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """[M] the rule's factors of the step sizes of clients that take `steps` [M] local steps."""
    scales = rule.step_size_scale(torch.from_numpy(steps).double()[:, None])
    return np.broadcast_to(np.asarray(scales, np.float64), (len(steps), 1))[:, 0]


def normaliser(
    rule: ClientRule, solver: Solver, sizes: StepSizes, steps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """||a_i||_1 [M] for tau_i = `steps` [M]: how far the solver travels, over eta, when every
    gradient is 1.

    FedNova, Section III. There is no formula: the solver itself is run on one number. Weight decay
    is part of the gradient there, so it does not count, and neither does an offset. The direction of
    a rule without affine form takes the place of the gradient.
    """
    if not len(steps):
        return np.zeros(0)
    form = rule.affine_form()
    solver = replace(solver, weight_decay=0.0, prox_mu=solver.prox_mu + (form.mu if form else 0.0))
    # Powers of two, so that draws of tau_i that vary from round to round share a table.
    longest = 1 << int(steps.max() - 1).bit_length()
    return _travel(solver, sizes, longest)[steps - 1] * step_size_scales(rule, steps)


@lru_cache(maxsize=64)
def _travel(solver: Solver, sizes: StepSizes, steps: int) -> NDArray[np.float64]:
    zero = cast("Any", 0.0)
    local = ClientContext(
        x=zero,
        shared={},
        memory={},
        full_gradient=None,
        mean_gradient=None,
        steps=zero,
        normaliser=zero,
        lr=sizes.first,
    )
    y, velocity, travelled = zero, None, []
    for k in range(steps):
        direction, velocity = solver.direction(ClientRule(), cast("Any", 1.0), y, velocity, local)
        y = y - sizes[k] * direction
        travelled.append(-y / sizes.first)
    return np.array(travelled)


class Factors(NamedTuple):
    """The factors of the recursion, constant over a round."""

    pull: float
    shrink: float
    momentum: float


def factors(algorithm: Algorithm, l2: float) -> Factors:
    """Return the factors of an algorithm with an affine rule, for a client whose loss contains
    l2/2 |y|^2 beside the data's part.
    """
    solver, form, shrink = algorithm.solver, algorithm.rule.affine_form(), l2
    assert form is not None
    towards = form.mu
    if algorithm.rule.subtracts_gradient_at_x():
        # With the gradient at x the share that l2 has in it is taken away.
        towards, shrink = towards + l2, 0.0
    return Factors(towards + solver.prox_mu, shrink + solver.weight_decay, solver.momentum)


def has_offset(rule: ClientRule) -> bool:
    """Return True if an affine rule has an offset."""
    form = rule.affine_form()
    return form is not None and form.has_offset


def offsets(rule: ClientRule, local: ClientContext) -> Tensor:
    """Return the offsets [M, D] of an affine rule, for the M > 0 clients of `local`."""
    start = local.x.expand(len(local.steps), -1)
    return rule.direction(start.new_zeros(start.shape), start, local)


def _rate(local: LocalSolver) -> float:
    assert local.rate is not None
    return local.rate
