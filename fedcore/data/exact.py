"""The exact problems as arrays: what a specification gives inline, or how its clients are drawn.

NumPy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.data.random import generator
from fedcore.spec.exact import ExactProblem, GeneratedProblem, LeastSquares, Quadratic

Floats = NDArray[np.float64]
Each = Sequence[Floats] | Floats
"""An array for each client, or one of all where they are alike."""

_TOGETHER = 1 << 17
"""Numbers of matrices that are worked on at a time."""


@dataclass(frozen=True)
class QuadraticArrays:
    """F_i(x) = 1/2 x' H_i x - e_i' x + c_i."""

    hessians: Floats
    """[N, D, D]"""
    linear: Floats
    """[N, D]"""
    constants: Floats
    """[N]"""
    share: Floats
    """[N] p_i."""


@dataclass(frozen=True)
class LeastSquaresArrays:
    """A_i [n_i, D] and b_i [n_i] of least-squares clients."""

    rows: Each
    targets: Each
    share: Floats
    """[N] p_i."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[N] n_i."""
        return np.array([len(target) for target in self.targets], np.int64)


def quadratics(spec: ExactProblem) -> QuadraticArrays:
    """The clients of either kind as quadratics."""
    return quadratic(spec) if isinstance(spec, Quadratic) else as_quadratics(samples(spec), spec.ridge)


def start_of(spec: ExactProblem) -> Floats:
    """[D] where the global iterate starts."""
    return np.zeros(spec.dim) if spec.x0 is None else np.array(spec.x0)


def quadratic(spec: Quadratic) -> QuadraticArrays:
    """The clients given inline or drawn."""
    if spec.clients is None:
        assert spec.generate is not None
        return _quadratics(spec.generate)
    return QuadraticArrays(
        np.array([client.H for client in spec.clients]),
        np.array([client.e for client in spec.clients]),
        np.array([client.c for client in spec.clients]),
        _shares([client.weight for client in spec.clients]),
    )


def samples(spec: LeastSquares) -> LeastSquaresArrays:
    """The clients given inline or drawn."""
    if spec.clients is None:
        assert spec.generate is not None
        drawn, wanted = _samples(spec.generate)
        return LeastSquaresArrays(drawn, wanted, _shares([len(target) for target in wanted]))
    rows, targets = (
        [np.array(client.A) for client in spec.clients],
        [np.array(client.b) for client in spec.clients],
    )
    return LeastSquaresArrays(
        rows, targets, _shares([client.weight or len(client.b) for client in spec.clients])
    )


def as_quadratics(given: LeastSquaresArrays, ridge: float) -> QuadraticArrays:
    """1/(2 n_i) |A_i x - b_i|^2 + ridge/2 |x|^2 multiplied out."""
    sizes, dim = given.sizes, given.rows[0].shape[1]
    hessians, linear, constants = (
        np.empty((len(sizes), dim, dim)),
        np.empty((len(sizes), dim)),
        np.empty(len(sizes)),
    )
    for size in np.unique(sizes):
        clients = np.flatnonzero(sizes == size)
        a, b = (np.stack([part[int(client)] for client in clients]) for part in (given.rows, given.targets))
        hessians[clients] = a.mT @ a / size + ridge * np.eye(dim)
        linear[clients] = (a.mT @ b[:, :, None])[:, :, 0] / size
        constants[clients] = (b[:, None] @ b[:, :, None])[:, 0, 0] / (2 * size)
    return QuadraticArrays(hessians, linear, constants, given.share)


def _shares(weights: Sequence[float]) -> Floats:
    held = np.array(weights, np.float64)
    return np.asarray(held / held.sum())


def _quadratics(spec: GeneratedProblem) -> QuadraticArrays:
    """H_i with eigenvalues log-uniform in [1/condition_number, 1] (both ends taken), optima c_i,
    F_i(c_i) = 0.
    """
    hessians, optima = np.empty((spec.clients, spec.dim, spec.dim)), np.empty((spec.clients, spec.dim))
    centre = generator(spec.seed, "quadratic centre").normal(scale=spec.centre, size=spec.dim)
    exponents = np.empty((spec.clients, spec.dim))
    for client in range(spec.clients):
        draw = generator(spec.seed, "quadratic client", client=client)
        _draw_spd(draw, hessians[client], exponents[client])
        optima[client] = _drawn_optimum(spec, centre, draw)
    _make_spd(hessians, exponents, spec.condition_number)
    columns = optima[:, :, None]
    constants = 0.5 * optima[:, None] @ hessians @ columns
    return QuadraticArrays(
        hessians, (hessians @ columns)[:, :, 0], constants[:, 0, 0], _shares([1.0] * spec.clients)
    )


def _samples(spec: GeneratedProblem) -> tuple[Floats, Floats]:
    """Rows of A_i ~ N(0, S_i) with S_i of the given condition number, b_i = A_i c_i + noise, c_i
    the client's optimum.
    """
    clients, dim = spec.clients, spec.dim
    centre = generator(spec.seed, "least-squares centre").normal(scale=spec.centre, size=dim)
    covariances, exponents = np.empty((clients, dim, dim)), np.empty((clients, dim))
    rows, targets, optima = (
        np.empty((clients, spec.samples, dim)),
        np.empty((clients, spec.samples)),
        np.empty((clients, dim)),
    )
    for client in range(clients):
        draw = generator(spec.seed, "least-squares client", client=client)
        _draw_spd(draw, covariances[client], exponents[client])
        draw.standard_normal(out=rows[client])
        optima[client] = _drawn_optimum(spec, centre, draw)
        targets[client] = draw.normal(scale=spec.noise, size=spec.samples)
    _make_spd(covariances, exponents, spec.condition_number)
    rows = rows @ np.linalg.cholesky(covariances).mT
    targets += (rows @ optima[:, :, None])[:, :, 0]
    return rows, targets


def _drawn_optimum(spec: GeneratedProblem, centre: Floats, draw: np.random.Generator) -> Floats:
    """One client's optimum [D]: around the centre, and moved along all coordinates at once."""
    spread = draw.normal(scale=spec.heterogeneity, size=spec.dim)
    return centre + spread + draw.normal(scale=spec.shift)


def _draw_spd(draw: np.random.Generator, matrix: Floats, exponents: Floats) -> None:
    """Fill what a matrix [D, D] is made of: normal numbers, and exponents [D] of its
    eigenvalues.
    """
    draw.standard_normal(out=matrix)
    draw.random(out=exponents)


def _make_spd(matrices: Floats, exponents: Floats, condition_number: float) -> None:
    """Make them, in place, [N, D, D]: symmetric, positive definite, with largest eigenvalue 1 and
    the given condition number.
    """
    exponents[:, 0], exponents[:, -1] = 1.0, 0.0
    length = max(1, _TOGETHER // matrices[0].size)
    for start in range(0, len(matrices), length):
        some = matrices[start : start + length]
        basis, _ = np.linalg.qr(some)
        product = (basis * (condition_number ** -exponents[start : start + length])[:, None]) @ basis.mT
        some[:] = (product + product.mT) / 2
