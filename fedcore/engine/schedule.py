"""Step sizes over a round, and the normaliser ||a_i||_1 that they give a local solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedcore.core import ClientContext, ClientRule, Solver
from fedcore.spec.local import ExponentialLr, InverseTimeLr, LocalSolver, StepLr

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def normaliser(
    rule: ClientRule, solver: Solver, sizes: StepSizes, steps: NDArray[np.int64]
) -> NDArray[np.float64]:
    """||a_i||_1 [M] for tau_i = `steps` [M]: how far the solver travels, over eta, when every
    gradient is 1.

    FedNova, Section III. There is no formula: the solver itself is run on one number. Weight decay
    is part of the gradient there, so it does not count.
    """
    if not len(steps):
        return np.zeros(0)
    # Powers of two, so that draws of tau_i that vary from round to round share a table.
    longest = 1 << int(steps.max() - 1).bit_length()
    travelled = _travel(rule, replace(solver, weight_decay=0.0), sizes, longest)[steps - 1]
    return np.asarray(travelled * rule.step_size_scale(cast("Any", steps)))


@lru_cache(maxsize=64)
def _travel(rule: ClientRule, solver: Solver, sizes: StepSizes, steps: int) -> NDArray[np.float64]:
    zeros = cast("Any", dict.fromkeys({*rule.memory(), *rule.shared()}, 0.0))
    scalar = cast("Any", 0.0)
    local = ClientContext(
        x=scalar,
        shared=zeros,
        memory=zeros,
        full_gradient=scalar,
        mean_gradient=scalar,
        steps=scalar,
        normaliser=scalar,
        lr=sizes.first,
    )

    y, velocity, travelled = cast("Any", 0.0), None, []
    for k in range(steps):
        direction, velocity = solver.direction(rule, cast("Any", 1.0), y, velocity, local)
        y = y - sizes[k] * direction
        travelled.append(-y / sizes.first)
    return np.array(travelled)


def _rate(local: LocalSolver) -> float:
    assert local.rate is not None
    return local.rate
