"""Least-squares clients, F_i(x) = 1/(2 n_i) |A_i x - b_i|^2 + ridge/2 |x|^2, by rows or exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedcore.data.exact import LeastSquares, LeastSquaresArrays, as_quadratics, build_samples, start_of
from fedcore.problems.base import Ids, Stackable, Stacked
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
class _Samples:
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

    def some(self, clients: Ids) -> "_Samples":
        """The `clients` [m] alone."""
        chosen = torch.from_numpy(rows_of(self.starts[clients], self.sizes[clients])).to(self.rows.device)
        return _Samples(self.rows[chosen], self.targets[chosen], self.sizes[clients], self.ridge)

    def stack(self, clients: Ids, batches: Tensor, *step: Step) -> _Rows:
        rows, weights = locate(
            batches, torch.from_numpy(self.starts[clients]).to(self.rows.device), self.rows.dtype
        )
        return _Rows(self.rows[rows], self.targets[rows], weights, self.ridge)


class LeastSquaresProblem(QuadraticProblem):
    """Clients given by their samples; methods that need no samples are inherited from the same
    problem as a quadratic.
    """

    def __init__(self, given: LeastSquaresArrays, ridge: float, x0: Tensor, noise: float) -> None:
        """Keep the rows on the device of `x0` and in its type."""
        super().__init__(as_quadratics(given, ridge), x0, noise)
        self.sizes, self.data_source = given.sizes, "least squares"
        held, wanted = (
            torch.from_numpy(np.concatenate(parts)).to(x0) for parts in (given.rows, given.targets)
        )
        self.samples, self._ridge = _Samples(held, wanted, self.sizes, ridge), ridge
        self.kind = ("least squares", self.dim, ridge, x0.dtype, x0.device)

    def gradient(self, theta: Tensor, client: int, samples: Tensor | None, *step: Step) -> Tensor:
        chosen = torch.arange(int(self.sizes[client]), device=theta.device) if samples is None else samples
        chosen = chosen + int(self.samples.starts[client])
        rows, targets = self.samples.rows[chosen], self.samples.targets[chosen]
        return rows.T @ (rows @ theta - targets) / len(chosen) + self._ridge * theta

    def stack(self, clients: Ids, batches: Tensor, *step: Step) -> Stacked:
        return self.samples.stack(clients, batches)

    def pooled(self) -> Self:
        problem, held = super().pooled(), self.samples
        # Rows that are scaled so count the client's p_i together in the mean over all.
        scales = np.sqrt(self.share * self.sizes.sum() / self.sizes).repeat(self.sizes)
        factors = torch.from_numpy(scales).to(held.rows)
        problem.samples = _Samples(
            held.rows * factors[:, None], held.targets * factors, problem.sizes, held.ridge
        )
        return problem

    def joined(self, cohorts: Sequence[tuple[Any, Ids]]) -> Stackable:
        parts = [problem.samples.some(clients) for problem, clients in cohorts]
        sizes = np.concatenate([part.sizes for part in parts])
        return _Samples(
            torch.cat([part.rows for part in parts]),
            torch.cat([part.targets for part in parts]),
            sizes,
            self._ridge,
        )


def load_least_squares(spec: LeastSquares, device: str, dtype: torch.dtype) -> LeastSquaresProblem:
    """Load the problem given inline or drawn."""
    start = torch.tensor(start_of(spec), dtype=dtype, device=device)
    return LeastSquaresProblem(build_samples(spec), spec.ridge, start, spec.gradient_noise)
