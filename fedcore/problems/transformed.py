"""Li et al.'s transformation of an objective with unequal p_i into one with equal ones."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.problems.base import Gradient, Ids, Problem, Stacked, Values
from fedcore.problems.dense import DenseNetwork


@dataclass(frozen=True)
class _Scaled:
    """Gradients of several clients, each times its own factor [m, 1]."""

    stacked: Stacked
    factors: Tensor

    def gradient(self, theta: Tensor, k: int) -> Tensor:
        return self.factors * self.stacked.gradient(theta, k)


class Transformed:
    """sum_i (1/N) F~_i with F~_i = p_i N F_i: the same objective f, and what each client minimises carries its p_i.

    Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020, Section 3.3. Training takes the place of `problem`'s
    by this; what is measured stays that of `problem`. Noise that the problem asks for is added to the scaled gradients.
    """

    def __init__(self, problem: Problem) -> None:
        """Leave the data where they are."""
        population = len(problem.share)
        self._problem, self._factors = problem, torch.from_numpy(problem.share * population).to(problem.initial())
        self.dim, self.sizes, self.share = problem.dim, problem.sizes, np.full(population, 1 / population)
        self.views, self.capacity, self.engine = problem.views, problem.capacity, problem.engine
        self.gradient_noise, self.data_source = problem.gradient_noise, problem.data_source

    @property
    def dense(self) -> DenseNetwork | None:
        given = self._problem.dense
        return given and replace(given, scale=self._factors.double().numpy(force=True))

    def initial(self) -> Tensor:
        return self._problem.initial()

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None) -> Tensor:
        return self._scaled(self._problem.gradient, theta, client, samples)

    def replica(self) -> Gradient:
        return partial(self._scaled, self._problem.replica())

    def stack(self, clients: Ids, batches: Tensor) -> Stacked:
        return _Scaled(self._problem.stack(clients, batches), self._of(clients))

    def client_gradients(self, theta: Tensor, clients: Ids) -> Tensor:
        return self._of(clients) * self._problem.client_gradients(theta, clients)

    def evaluate(self, theta: Tensor, measures: Collection[str]) -> Values:
        return self._problem.evaluate(theta, measures)

    def client_accuracies(self, theta: Tensor) -> NDArray[np.float64] | None:
        return self._problem.client_accuracies(theta)

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        return self._problem.named(theta)

    def _scaled(self, gradient: Gradient, theta: Tensor, client: int, samples: Tensor | None) -> Tensor:
        return float(self._factors[client]) * gradient(theta, client, samples)

    def _of(self, clients: Ids) -> Tensor:
        return self._factors[torch.from_numpy(clients).to(self._factors.device)][:, None]
