"""Quadratic clients, F_i(x) = 1/2 x' H_i x - e_i' x + c_i, with their minimiser in closed form."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.random import generator
from fedcore.problems.base import VECTORISED, Gradient, Ids, Stackable, Values, capacity
from fedcore.spec.exact import GeneratedProblem, Quadratic

Floats = NDArray[np.float64]
Coefficients = tuple[Floats, Floats, Floats]

_TOGETHER = 1 << 17
"""Numbers of matrices that are worked on at a time."""


@dataclass(frozen=True)
class _Products:
    """Gradients H y - e; every step is over all the data."""

    hessians: Tensor
    linear: Tensor

    def gradient(self, theta: Tensor, k: int) -> Tensor:
        return torch.bmm(self.hessians, theta[:, :, None]).squeeze(-1) - self.linear


@dataclass(frozen=True)
class _Clients:
    """H [N, D, D] and e [N, D]."""

    hessians: Tensor
    linear: Tensor

    def stack(self, clients: Ids, batches: Tensor) -> _Products:
        rows = torch.from_numpy(clients).to(self.linear.device)
        return _Products(self.hessians[rows], self.linear[rows])


class QuadraticProblem:
    """Clients given by (H [N, D, D], e [N, D], c [N]) and shares p [N]; each counts as one sample."""

    def __init__(self, coefficients: Coefficients, share: Floats, x0: Tensor, noise: float) -> None:
        """Solve for the minimiser, on the device of `x0` and in its type; a singular problem takes the one of least norm."""
        hessians, linear, constants = (torch.from_numpy(array).to(x0) for array in coefficients)
        self.dim = linear.shape[1]
        self.share, self.sizes = share, np.ones(len(share), np.int64)
        self.views, self.capacity, self.gradient_noise = 1, capacity(linear[0].nbytes, x0.device), noise
        self.data_source, self.engine, self.dense = "quadratic", VECTORISED, None
        self.data_sha256: str | None = None
        self.kind: Hashable = ("quadratic", self.dim, x0.dtype, x0.device)
        self.clients, self._x0 = _Clients(hessians, linear), x0
        p = torch.from_numpy(share).to(linear)
        self._mean = torch.tensordot(p, hessians, 1), p @ linear, p @ constants
        self._optimum = torch.linalg.pinv(self._mean[0], hermitian=True) @ self._mean[1]

    def initial(self) -> Tensor:
        return self._x0.clone()

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None) -> Tensor:
        return self.clients.hessians[client] @ theta - self.clients.linear[client]

    def replica(self) -> Gradient:
        return self.gradient

    def stack(self, clients: Ids, batches: Tensor) -> _Products:
        return self.clients.stack(clients, batches)

    def joined(self, cohorts: Sequence[tuple["QuadraticProblem", Ids]]) -> Stackable:
        hessians = torch.cat([problem.clients.hessians[torch.from_numpy(clients)] for problem, clients in cohorts])
        return _Clients(hessians, torch.cat([problem.clients.linear[torch.from_numpy(clients)] for problem, clients in cohorts]))

    def client_gradients(self, theta: Tensor, clients: Ids) -> Tensor:
        return self.stack(clients, torch.empty(0)).gradient(theta.expand(len(clients), -1), 0)

    def evaluate(self, theta: Tensor, measures: Collection[str]) -> Values:
        """objective f(x), suboptimality f(x) - f(x*), distance |x - x*|; train_loss is the objective."""
        gap = theta - self._optimum
        objective = float(0.5 * theta @ self._mean[0] @ theta - self._mean[1] @ theta + self._mean[2])
        exact: Values = {"objective": objective, "suboptimality": float(0.5 * gap @ self._mean[0] @ gap), "distance": float(gap.norm())}
        return exact | ({"train_loss": objective} if "train_loss" in measures else {})

    def client_accuracies(self, theta: Tensor) -> None:
        return None

    def named(self, theta: Tensor) -> dict[str, Tensor]:
        return {"x": theta}


def load_quadratic(spec: Quadratic, device: str, dtype: torch.dtype) -> QuadraticProblem:
    """The problem given inline or drawn."""
    if spec.clients is not None:
        hessians = np.array([client.H for client in spec.clients])
        linear = np.array([client.e for client in spec.clients])
        constants = np.array([client.c for client in spec.clients])
        weights = np.array([client.weight for client in spec.clients])
    else:
        assert spec.generate is not None
        hessians, linear, constants = _draw(spec.generate)
        weights = np.ones(len(linear))
    x0 = np.zeros(spec.dim) if spec.x0 is None else np.array(spec.x0)
    start = torch.tensor(x0, dtype=dtype, device=device)
    return QuadraticProblem((hessians, linear, constants), weights / weights.sum(), start, spec.gradient_noise)


def _draw(spec: GeneratedProblem) -> Coefficients:
    """H_i with eigenvalues log-uniform in [1/condition_number, 1] (both ends taken), optima c_i, F_i(c_i) = 0."""
    hessians, optima = np.empty((spec.clients, spec.dim, spec.dim)), np.empty((spec.clients, spec.dim))
    centre = generator(spec.seed, "quadratic centre").normal(scale=spec.centre, size=spec.dim)
    exponents = np.empty((spec.clients, spec.dim))
    for client in range(spec.clients):
        draw = generator(spec.seed, "quadratic client", client=client)
        draw_spd(draw, hessians[client], exponents[client])
        optima[client] = drawn_optimum(spec, centre, draw)
    make_spd(hessians, exponents, spec.condition_number)
    columns = optima[:, :, None]
    constants = 0.5 * optima[:, None] @ hessians @ columns
    return hessians, (hessians @ columns)[:, :, 0], constants[:, 0, 0]


def drawn_optimum(spec: GeneratedProblem, centre: Floats, draw: np.random.Generator) -> Floats:
    """One client's optimum [D]: around the centre, and moved along all coordinates at once."""
    spread = draw.normal(scale=spec.heterogeneity, size=spec.dim)
    return centre + spread + draw.normal(scale=spec.shift)


def draw_spd(draw: np.random.Generator, matrix: Floats, exponents: Floats) -> None:
    """Fill what a matrix [D, D] is made of: normal numbers, and exponents [D] of its eigenvalues."""
    draw.standard_normal(out=matrix)
    draw.random(out=exponents)


def make_spd(matrices: Floats, exponents: Floats, condition_number: float) -> None:
    """Make them, in place, [N, D, D]: symmetric, positive definite, with largest eigenvalue 1 and the given condition number."""
    exponents[:, 0], exponents[:, -1] = 1.0, 0.0
    length = max(1, _TOGETHER // matrices[0].size)
    for start in range(0, len(matrices), length):
        some = matrices[start : start + length]
        basis, _ = np.linalg.qr(some)
        product = (basis * (condition_number ** -exponents[start : start + length])[:, None]) @ basis.mT
        some[:] = (product + product.mT) / 2
