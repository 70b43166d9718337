"""Quadratic clients in closed form: how a round moves the model, where it comes to rest, and how
far that is from the optimum.

Client i has F_i(x) = 1/2 x' H_i x - e_i' x. With full gradients and a constant step size, tau_i
local steps from x end at x + K_i (e_i - H_i x), so a round of averaging is an affine map of x (Wang
et al., FedNova, Section VIII-A).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratics:
    """F(x) = sum_i p_i F_i(x), F_i(x) = 1/2 x' H_i x - e_i' x."""

    hessians: Floats
    """[N, D, D] H_i, symmetric."""
    linear: Floats
    """[N, D] e_i."""
    share: Floats
    """[N] p_i; they sum to 1."""

    def optimum(self, weights: ArrayLike | None = None) -> Floats:
        """[D] the minimiser of sum_i w_i F_i; w is p if absent.

        Raises LinAlgError where it is not unique.
        """
        w = self.share if weights is None else np.asarray(weights)
        return solve_system(
            np.tensordot(w, self.hessians, 1), w @ self.linear, "the minimiser", "the mean Hessian"
        )

    def suboptimality(self, iterates: Floats) -> Floats:
        """F(x) - F(x*) [...] of `iterates` [..., D]."""
        gap = iterates - self.optimum()
        return np.asarray(
            0.5 * np.einsum("...d,de,...e->...", gap, np.tensordot(self.share, self.hessians, 1), gap)
        )


@dataclass(frozen=True)
class RoundMap:
    """A round, x <- x~ + M (x - x~)."""

    matrix: Floats
    """[D, D] M."""
    fixed_point: Floats
    """[D] x~, where rounds no longer move the model."""

    @property
    def rate(self) -> float:
        """The spectral radius of M: below 1 rounds converge to x~, by this factor a round in the
        long run.
        """
        return float(np.abs(np.linalg.eigvals(self.matrix)).max())

    def iterates(self, x0: ArrayLike, rounds: int) -> Floats:
        """[rounds + 1, D] the model before the first round and after each."""
        gaps = np.empty((rounds + 1, len(self.fixed_point)))
        gaps[0] = np.asarray(x0) - self.fixed_point
        for round in range(rounds):
            gaps[round + 1] = self.matrix @ gaps[round]
        return self.fixed_point + gaps

    def at(self, x0: ArrayLike, rounds: Sequence[int]) -> Floats:
        """[T, D] the model after each of the `rounds` [T], which ascend.

        By powers M^(2^k), so that few of many rounds take little time.
        """
        gap, before = np.asarray(x0) - self.fixed_point, 0
        powers, gaps = [self.matrix], []
        for round in rounds:
            left, power = round - before, 0
            while left >> power:
                if power == len(powers):
                    powers.append(powers[-1] @ powers[-1])
                if left >> power & 1:
                    gap = powers[power] @ gap
                power += 1
            gaps.append(gap)
            before = round
        return self.fixed_point + np.array(gaps)

    def damped(self, factor: float) -> "RoundMap":
        """The map that goes only `factor` of the way, x <- x + factor (M - I) (x - x~): a server
        step size.
        """
        identity = np.eye(len(self.matrix))
        return RoundMap(identity + factor * (self.matrix - identity), self.fixed_point)


def solve_system(matrix: Floats, right: Floats, sought: str, name: str) -> Floats:
    """[D] the one x with `matrix` x = `right`.

    Raises LinAlgError, which names both, where rounding leaves several.

    Elimination alone rarely notices a singular matrix: rounding makes its zero pivots about 1e-16.
    The rank is that of `numpy.linalg.matrix_rank`, which counts the singular values above D eps
    times the largest one.
    """
    if not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError(
            f"{sought} is not known: {name} exceeds the range of floating-point numbers"
        )
    rank = np.linalg.matrix_rank(matrix)
    if rank < len(matrix):
        raise np.linalg.LinAlgError(f"{sought} is not unique: {name} has rank {rank} of {len(matrix)}")
    return np.asarray(np.linalg.solve(matrix, right), np.float64)


def reach(hessian: Floats, eta: float, steps: int, mu: float = 0.0) -> Floats:
    """K [D, D] = [I - (I - eta (H + mu I))^tau] (H + mu I)^-1 = eta sum_{l < tau} (I - eta (H + mu
    I))^l.

    How far tau steps of size eta, held by mu/2 |y - x|^2, go towards the client's optimum (FedNova,
    eq. (26)).
    """
    values, basis = np.linalg.eigh(hessian)
    return np.asarray((basis * _travelled(values + mu, eta, steps)) @ basis.T)


def _travelled(curvature: ArrayLike, eta: float, steps: ArrayLike) -> Floats:
    """(1 - (1 - eta c)^tau) / c for curvatures c and steps tau, eta tau where c is 0.

    A client with fewer samples than parameters has curvatures of about 1e-16, for which the power
    is 1 to rounding; hence expm1 and log1p. The logarithm ends at eta c = 1, and from 1/2 on the
    power is far enough from 1.
    """
    c, tau = np.asarray(curvature, np.float64), np.asarray(steps)
    scaled = eta * c
    steep, flat = scaled > 0.5, np.abs(scaled) < np.finfo(np.float64).tiny
    power = 1 - np.where(steep, 1 - scaled, 0.0) ** tau
    covered = np.where(steep, power, -np.expm1(tau * np.log1p(-np.where(steep, 0.0, scaled))))
    return np.asarray(np.where(flat, eta * tau, covered / np.where(flat, 1.0, c)))


def averaging(problem: Quadratics, eta: float, steps: ArrayLike, mu: float = 0.0) -> RoundMap:
    """A round of FedAvg with full participation, or of FedProx with mu: M = I - sum_i p_i K_i H_i
    (FedNova, eqs. (28) to (31)).

    `steps` [N] are tau_i. The fixed point minimises F only for equal H_i and tau_i, or one step
    each: FedAvg's bias at a constant step size, which Li et al. bound from below by a multiple of
    (E - 1) eta |x*|.
    """
    return _averaged(problem, problem.share, eta, np.broadcast_to(steps, problem.share.shape), mu)


def normalised_averaging(problem: Quadratics, eta: float, steps: ArrayLike, mu: float = 0.0) -> RoundMap:
    """A round of FedNova with full participation, tau_eff = sum_i p_i tau_i: p_i K_i becomes p_i
    tau_eff K_i / ||a_i||_1.

    ||a_i||_1 is tau_i, or (1 - (1 - eta mu)^tau_i) / (eta mu) with a proximal solver. At a finite
    step size the fixed point is not the minimiser of F, unless all H_i and tau_i are equal; it
    tends there as eta -> 0.
    """
    tau = np.broadcast_to(steps, problem.share.shape)
    effort = _travelled(mu, eta, tau) / eta
    return _averaged(problem, problem.share * (problem.share @ tau) / effort, eta, tau, mu)


def fedlin(problem: Quadratics, eta_bar: float, steps: ArrayLike) -> RoundMap:
    """A round of FedLin without compression on (1/N) sum_i F_i, client step sizes eta_bar / tau_i.

    M = I - (1/N) sum_i K_i H, H the mean of H_i: the optimum is a fixed point whatever tau_i.
    """
    tau, count = np.broadcast_to(steps, problem.share.shape), len(problem.share)
    reaches = [reach(h, eta_bar / t, t) for h, t in zip(problem.hessians, tau, strict=True)]
    uniform = np.full(count, 1 / count)
    return RoundMap(
        np.eye(problem.linear.shape[1]) - np.mean(reaches, 0) @ problem.hessians.mean(0),
        problem.optimum(uniform),
    )


def averaging_limit(problem: Quadratics, steps: ArrayLike) -> Floats:
    """[D] where FedAvg comes to rest as eta -> 0: the minimiser of sum_i p_i tau_i F_i (FedNova,
    Lemma 1).
    """
    return problem.optimum(problem.share * np.asarray(steps))


def _averaged(
    problem: Quadratics, weights: Floats, eta: float, steps: NDArray[np.int64], mu: float
) -> RoundMap:
    """x <- x + sum_i c_i K_i (e_i - H_i x) for c = `weights` [N]."""
    reaches = np.array([reach(h, eta, int(t), mu) for h, t in zip(problem.hessians, steps, strict=True)])
    pull = np.einsum("i,ide,ief->df", weights, reaches, problem.hessians)
    target = np.einsum("i,ide,ie->d", weights, reaches, problem.linear)
    return RoundMap(np.eye(len(pull)) - pull, solve_system(pull, target, "the point of rest", "I - M"))
