"""Least-squares clients, F_i(x) = 1/(2 n_i) |A_i x - b_i|^2 + ridge/2 |x|^2, by rows or exactly."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.exact import LeastSquares, LeastSquaresArrays, as_quadratics, samples, start_of
from fedcore.problems.base import VECTORISED, Gradient, Ids, Stackable, Values, capacity
from fedcore.problems.batches import locate, rows_of
from fedcore.problems.passes import Step
from fedcore.problems.quadratic import QuadraticProblem


@dataclass(frozen=True)
class _Rows:
    """Gathered rows [S, m, B, D], targets and weights [S, m, B].

    S is 1 where every step sees the same.
    """

    rows: Tensor
    targets: Tensor
    weights: Tensor
    ridge: float

    def gradient(self, theta: Tensor, k: int) -> Tensor:
        rows, targets, weights = (part[k % len(part)] for part in (self.rows, self.targets, self.weights))
        error = (torch.bmm(rows, theta[:, :, None]).squeeze(-1) - targets) * weights
        return torch.bmm(error[:, None], rows).squeeze(1) + self.ridge * theta


@dataclass(frozen=True)
class _Clients:
    """A [n, D] and b [n] of all clients, one after another."""

    rows: Tensor
    targets: Tensor
    sizes: Ids
    """[N] samples of each client."""
    ridge: float

    @cached_property
    def starts(self) -> Ids:
        """[N] where the samples of each client begin."""
        return np.cumsum(self.sizes) - self.sizes

    def some(self, clients: Ids) -> "_Clients":
        """The `clients` [m] alone."""
        chosen = torch.from_numpy(rows_of(self.starts[clients], self.sizes[clients])).to(self.rows.device)
        return _Clients(self.rows[chosen], self.targets[chosen], self.sizes[clients], self.ridge)

    def stack(self, clients: Ids, batches: Tensor, *step: Step) -> _Rows:
        rows, weights = locate(
            batches, torch.from_numpy(self.starts[clients]).to(self.rows.device), self.rows.dtype
        )
        return _Rows(self.rows[rows], self.targets[rows], weights, self.ridge)


class LeastSquaresProblem:
    """Clients given by their samples.

    Everything that needs no rows is delegated to the same problem as a quadratic.
    """

    def __init__(self, given: LeastSquaresArrays, ridge: float, x0: Tensor, noise: float) -> None:
        """Keep the rows on the device of `x0` and in its type."""
        self.sizes = given.sizes
        self.dim, self.share = given.rows[0].shape[1], given.share
        self.views, self.capacity, self.gradient_noise = 1, capacity(x0.nbytes, x0.device), noise
        self.data_source, self.engine, self.dense = "least squares", VECTORISED, None
        self.stackable = True
        self.data_sha256: str | None = None
        held, wanted = (
            torch.from_numpy(np.concatenate(parts)).to(x0) for parts in (given.rows, given.targets)
        )
        self.clients, self._ridge = _Clients(held, wanted, self.sizes, ridge), ridge
        self.kind: Hashable = ("least squares", self.dim, ridge, x0.dtype, x0.device)
        self._exact = QuadraticProblem(as_quadratics(given, ridge), x0, noise)

    def initial(self, number: int = 0) -> Tensor:
        return self._exact.initial(number)

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None, *step: Step) -> Tensor:
        chosen = torch.arange(int(self.sizes[client]), device=theta.device) if samples is None else samples
        chosen = chosen + int(self.clients.starts[client])
        rows, targets = self.clients.rows[chosen], self.clients.targets[chosen]
        return rows.T @ (rows @ theta - targets) / len(chosen) + self._ridge * theta

    def replica(self) -> Gradient:
        return self.gradient

    def stack(self, clients: Ids, batches: Tensor, *step: Step) -> _Rows:
        return self.clients.stack(clients, batches)

    def joined(self, cohorts: Sequence[tuple["LeastSquaresProblem", Ids]]) -> Stackable:
        parts = [problem.clients.some(clients) for problem, clients in cohorts]
        sizes = np.concatenate([part.sizes for part in parts])
        return _Clients(
            torch.cat([part.rows for part in parts]),
            torch.cat([part.targets for part in parts]),
            sizes,
            self._ridge,
        )

    def client_gradients(self, theta: Tensor, clients: Ids) -> Tensor:
        return self._exact.client_gradients(theta, clients)

    def evaluate(self, theta: Tensor, measures: Collection[str]) -> Values:
        return self._exact.evaluate(theta, measures)

    def client_losses(self, theta: Tensor, clients: Ids) -> NDArray[np.float64]:
        return self._exact.client_losses(theta, clients)

    def client_accuracies(self, theta: Tensor) -> None:
        return None

    def accuracies_of(self, models: Tensor, clients: Ids) -> None:
        return None

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        return {"x": theta}

    def coordinates(self) -> dict[str, Tensor]:
        return self._exact.coordinates()


def load_least_squares(spec: LeastSquares, device: str, dtype: torch.dtype) -> LeastSquaresProblem:
    """Load the problem given inline or drawn."""
    start = torch.tensor(start_of(spec), dtype=dtype, device=device)
    return LeastSquaresProblem(samples(spec), spec.ridge, start, spec.gradient_noise)
