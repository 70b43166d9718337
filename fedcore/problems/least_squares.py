"""Least-squares clients, F_i(x) = 1/(2 n_i) |A_i x - b_i|^2 + ridge/2 |x|^2, by rows or exactly."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedcore.data.random import generator
from fedcore.problems.base import VECTORISED, Gradient, Ids, Values, capacity
from fedcore.problems.batches import locate
from fedcore.problems.quadratic import Floats, QuadraticProblem, drawn_optimum, spd
from fedcore.spec.exact import GeneratedProblem, LeastSquares


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


class LeastSquaresProblem:
    """Clients given by A_i [n_i, D] and b_i [n_i]; whatever needs no rows is asked of the same problem as a quadratic."""

    def __init__(self, rows: Sequence[Floats], targets: Sequence[Floats], share: Floats, ridge: float, x0: Tensor, noise: float) -> None:
        """Keep the rows on the device of `x0` and in its type."""
        self.sizes = np.array([len(target) for target in targets], np.int64)
        self.dim, self.share = rows[0].shape[1], share
        self.views, self.capacity, self.gradient_noise = 1, capacity(x0.nbytes), noise
        self.data_source, self.engine, self.dense = "least squares", VECTORISED, None
        self._offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(self.sizes)[:-1]])).to(x0.device)
        self._rows = torch.from_numpy(np.concatenate(rows)).to(x0)
        self._targets = torch.from_numpy(np.concatenate(targets)).to(x0)
        self._ridge = ridge
        self._exact = _as_quadratic(rows, targets, share, ridge, x0, noise)

    def initial(self) -> Tensor:
        return self._exact.initial()

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None) -> Tensor:
        chosen = torch.arange(int(self.sizes[client]), device=theta.device) if samples is None else samples
        chosen = chosen + self._offsets[client]
        rows, targets = self._rows[chosen], self._targets[chosen]
        return rows.T @ (rows @ theta - targets) / len(chosen) + self._ridge * theta

    def replica(self) -> Gradient:
        return self.gradient

    def stack(self, clients: Ids, batches: Tensor) -> _Rows:
        rows, weights = locate(batches, self._offsets[torch.from_numpy(clients).to(self._rows.device)], self._rows.dtype)
        return _Rows(self._rows[rows], self._targets[rows], weights, self._ridge)

    def client_gradients(self, theta: Tensor, clients: Ids) -> Tensor:
        return self._exact.client_gradients(theta, clients)

    def evaluate(self, theta: Tensor, measures: Collection[str]) -> Values:
        return self._exact.evaluate(theta, measures)

    def client_accuracies(self, theta: Tensor) -> None:
        return None

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        return {"x": theta}


def _as_quadratic(
    rows: Sequence[Floats], targets: Sequence[Floats], share: Floats, ridge: float, x0: Tensor, noise: float
) -> QuadraticProblem:
    identity = np.eye(rows[0].shape[1])
    hessians = np.array([a.T @ a / len(a) + ridge * identity for a in rows])
    linear = np.array([a.T @ b / len(a) for a, b in zip(rows, targets, strict=True)])
    constants = np.array([b @ b / (2 * len(b)) for b in targets])
    return QuadraticProblem((hessians, linear, constants), share, x0, noise)


def load_least_squares(spec: LeastSquares, device: str, dtype: torch.dtype) -> LeastSquaresProblem:
    """The problem given inline or drawn."""
    if spec.clients is not None:
        rows = [np.array(client.A) for client in spec.clients]
        targets = [np.array(client.b) for client in spec.clients]
        weights = np.array([client.weight or len(client.b) for client in spec.clients], float)
    else:
        assert spec.generate is not None
        rows, targets = _draw(spec.generate)
        weights = np.array([len(target) for target in targets], float)
    x0 = np.zeros(spec.dim) if spec.x0 is None else np.array(spec.x0)
    start = torch.tensor(x0, dtype=dtype, device=device)
    return LeastSquaresProblem(rows, targets, weights / weights.sum(), spec.ridge, start, spec.gradient_noise)


def _draw(spec: GeneratedProblem) -> tuple[list[Floats], list[Floats]]:
    """Rows of A_i ~ N(0, S_i) with S_i of the given condition number, b_i = A_i c_i + noise, c_i the client's optimum."""
    rows, targets = [], []
    centre = generator(spec.seed, "least-squares centre").normal(scale=spec.centre, size=spec.dim)
    for client in range(spec.clients):
        draw = generator(spec.seed, "least-squares client", client=client)
        root = np.linalg.cholesky(spd(draw, spec.dim, spec.condition_number))
        a = draw.normal(size=(spec.samples, spec.dim)) @ root.T
        rows.append(a)
        optimum = drawn_optimum(spec, centre, draw)
        targets.append(a @ optimum + draw.normal(scale=spec.noise, size=spec.samples))
    return rows, targets
