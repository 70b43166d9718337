"""State of clients' forward passes, beside model and mini-batch: the keys of their random
numbers and their running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcore.random import generator

DROPOUT = "dropout"
"""Purpose of randomness."""
OBJECTIVE = "objective"
"""Purpose of randomness."""


class PassKey(NamedTuple):
    """Names the random numbers of a client's passes in a round."""

    seed: int
    round: int
    client: int


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """The passes of R clients in a round. The statistics change in place."""

    keys: Sequence[PassKey]
    """[R]."""
    statistics: Tensor
    """[R, m, S] running statistics of batch norm after the steps so far, of each of the m models that a
    client trains.
    """
    view: Mapping[str, Tensor] | None = None
    """The view that the problem's objective has of each client beside model and mini-batch, by name,
    [R, ...] each; None where the loss is that of the problem.
    """

    def take(self, rows: Sequence[int]) -> ForwardPasses:
        """A copy for some of the clients."""
        index = torch.tensor(list(rows)).to(self.statistics.device)
        return ForwardPasses(
            [self.keys[row] for row in rows],
            self.statistics[index].clone(),
            self.view and {name: vectors[index] for name, vectors in self.view.items()},
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A gradient in a local step of the clients of `passes`. All of a step have the same mini-batch and
    the same masks.
    """

    passes: ForwardPasses
    number: int
    """Number of the step in the round, from 0."""
    evaluation: int = 0
    """Which gradient of the step it is, from 0: the first m are the gradients of the m models
    trained.
    """
    at_x: bool = False
    """True for the gradient at x that a rule subtracts: private parameters have none."""

    def statistics(self) -> Tensor:
        """[R, S] the running statistics that the pass changes in place: a copy if it is not the one of a
        model that is trained.
        """
        known = self.passes.statistics
        if self.at_x or self.evaluation >= known.shape[1]:
            return known[:, 0].clone()
        return known[:, self.evaluation]

    def view(self, clients: int) -> Mapping[str, Tensor] | None:
        """The view that the objective has of the first `clients`, [m, ...] each; None for models beside the
        first, which descend the loss of the problem.
        """
        seen = self._seen()
        return seen and {name: rows[:clients] for name, rows in seen.items()}

    def view_of_one(self) -> Mapping[str, Tensor] | None:
        """The view that the objective has of the first client, [...] each; None as above."""
        seen = self._seen()
        return seen and {name: rows[0] for name, rows in seen.items()}

    def _seen(self) -> Mapping[str, Tensor] | None:
        return None if 0 < self.evaluation < self.passes.statistics.shape[1] else self.passes.view

    def uniform(self, samples: int, numbers: int, clients: int, purpose: str = DROPOUT) -> Tensor:
        """Uniform numbers [m, B, T] for B `samples` of each of the first m `clients`, T `numbers`
        each, for a `purpose`.

        They belong to the client, the step and the place of a sample in its mini-batch, so samples
        that come behind change none.
        """
        if not numbers:
            return torch.zeros(clients, samples, 0)
        drawn = np.empty((clients, samples, numbers), np.float32)
        for row, key in zip(drawn, self.passes.keys, strict=False):
            generator(key.seed, purpose, key.round, key.client, self.number).random(dtype=np.float32, out=row)
        return torch.from_numpy(drawn)


def step_of(
    passes: ForwardPasses | None, number: int, evaluation: int = 0, *, at_x: bool = False
) -> tuple[Step, ...]:
    """The last argument of a gradient function in training, if it takes one."""
    return () if passes is None else (Step(passes, number, evaluation, at_x),)
