"""Least-squares clients, F_i(x) = 1/(2 n_i) |A_i x - b_i|^2 + ridge/2 |x|^2, by rows or exactly."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedcore.data.random import generator
from fedcore.problems.base import VECTORISED, Gradient, Ids, Stackable, Values, capacity
from fedcore.problems.batches import locate, rows_of
from fedcore.problems.quadratic import Floats, QuadraticProblem, draw_spd, drawn_optimum, make_spd
from fedcore.spec.exact import GeneratedProblem, LeastSquares

Each = Sequence[Floats] | Floats
"""An array for each client, or one of all where they are alike."""


@dataclass(frozen=True)
class _Rows:
    """Gathered rows [S, m, B, D], targets and weights [S, m, B]; S is 1 where every step sees the same."""

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

    def stack(self, clients: Ids, batches: Tensor) -> _Rows:
        rows, weights = locate(batches, torch.from_numpy(self.starts[clients]).to(self.rows.device), self.rows.dtype)
        return _Rows(self.rows[rows], self.targets[rows], weights, self.ridge)


class LeastSquaresProblem:
    """Clients given by A_i [n_i, D] and b_i [n_i]; whatever needs no rows is asked of the same problem as a quadratic."""

    def __init__(self, rows: Each, targets: Each, share: Floats, ridge: float, x0: Tensor, noise: float) -> None:
        """Keep the rows on the device of `x0` and in its type."""
        self.sizes = np.array([len(target) for target in targets], np.int64)
        self.dim, self.share = rows[0].shape[1], share
        self.views, self.capacity, self.gradient_noise = 1, capacity(x0.nbytes, x0.device), noise
        self.data_source, self.engine, self.dense = "least squares", VECTORISED, None
        self.data_sha256: str | None = None
        held, wanted = (torch.from_numpy(np.concatenate(parts)).to(x0) for parts in (rows, targets))
        self.clients, self._ridge = _Clients(held, wanted, self.sizes, ridge), ridge
        self.kind: Hashable = ("least squares", self.dim, ridge, x0.dtype, x0.device)
        self._exact = _as_quadratic(rows, targets, share, ridge, x0, noise)

    def initial(self) -> Tensor:
        return self._exact.initial()

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None) -> Tensor:
        chosen = torch.arange(int(self.sizes[client]), device=theta.device) if samples is None else samples
        chosen = chosen + int(self.clients.starts[client])
        rows, targets = self.clients.rows[chosen], self.clients.targets[chosen]
        return rows.T @ (rows @ theta - targets) / len(chosen) + self._ridge * theta

    def replica(self) -> Gradient:
        return self.gradient

    def stack(self, clients: Ids, batches: Tensor) -> _Rows:
        return self.clients.stack(clients, batches)

    def joined(self, cohorts: Sequence[tuple["LeastSquaresProblem", Ids]]) -> Stackable:
        parts = [problem.clients.some(clients) for problem, clients in cohorts]
        sizes = np.concatenate([part.sizes for part in parts])
        return _Clients(torch.cat([part.rows for part in parts]), torch.cat([part.targets for part in parts]), sizes, self._ridge)

    def client_gradients(self, theta: Tensor, clients: Ids) -> Tensor:
        return self._exact.client_gradients(theta, clients)

    def evaluate(self, theta: Tensor, measures: Collection[str]) -> Values:
        return self._exact.evaluate(theta, measures)

    def client_accuracies(self, theta: Tensor) -> None:
        return None

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        return {"x": theta}


def _as_quadratic(rows: Each, targets: Each, share: Floats, ridge: float, x0: Tensor, noise: float) -> QuadraticProblem:
    sizes, dim = np.array([len(target) for target in targets]), x0.shape[0]
    hessians, linear, constants = np.empty((len(sizes), dim, dim)), np.empty((len(sizes), dim)), np.empty(len(sizes))
    for size in np.unique(sizes):
        clients = np.flatnonzero(sizes == size)
        a, b = (np.stack([part[int(client)] for client in clients]) for part in (rows, targets))
        hessians[clients] = a.mT @ a / size + ridge * np.eye(dim)
        linear[clients] = (a.mT @ b[:, :, None])[:, :, 0] / size
        constants[clients] = (b[:, None] @ b[:, :, None])[:, 0, 0] / (2 * size)
    return QuadraticProblem((hessians, linear, constants), share, x0, noise)


def load_least_squares(spec: LeastSquares, device: str, dtype: torch.dtype) -> LeastSquaresProblem:
    """The problem given inline or drawn."""
    if spec.clients is not None:
        rows: Each = [np.array(client.A) for client in spec.clients]
        targets: Each = [np.array(client.b) for client in spec.clients]
        weights = np.array([client.weight or len(client.b) for client in spec.clients], float)
    else:
        assert spec.generate is not None
        rows, targets = _draw(spec.generate)
        weights = np.array([len(target) for target in targets], float)
    x0 = np.zeros(spec.dim) if spec.x0 is None else np.array(spec.x0)
    start = torch.tensor(x0, dtype=dtype, device=device)
    return LeastSquaresProblem(rows, targets, weights / weights.sum(), spec.ridge, start, spec.gradient_noise)


def _draw(spec: GeneratedProblem) -> tuple[Floats, Floats]:
    """Rows of A_i ~ N(0, S_i) with S_i of the given condition number, b_i = A_i c_i + noise, c_i the client's optimum."""
    clients, dim = spec.clients, spec.dim
    centre = generator(spec.seed, "least-squares centre").normal(scale=spec.centre, size=dim)
    covariances, exponents = np.empty((clients, dim, dim)), np.empty((clients, dim))
    rows, targets, optima = np.empty((clients, spec.samples, dim)), np.empty((clients, spec.samples)), np.empty((clients, dim))
    for client in range(clients):
        draw = generator(spec.seed, "least-squares client", client=client)
        draw_spd(draw, covariances[client], exponents[client])
        draw.standard_normal(out=rows[client])
        optima[client] = drawn_optimum(spec, centre, draw)
        targets[client] = draw.normal(scale=spec.noise, size=spec.samples)
    make_spd(covariances, exponents, spec.condition_number)
    rows = rows @ np.linalg.cholesky(covariances).mT
    targets += (rows @ optima[:, :, None])[:, :, 0]
    return rows, targets
