"""The general framework of Wang et al., FedNova (IEEE TSP 2021): solvers as vectors a_i, weights
they imply, rates and floors.

A round is x <- x - tau_eff sum_i w_i eta d_i with d_i = G_i a_i / ||a_i||_1, G_i the client's
stochastic gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def vanilla(steps: int) -> Floats:
    """a [tau] of plain SGD: ones."""
    return np.ones(steps)


def proximal(steps: int, alpha: float) -> Floats:
    """a [tau] of SGD with a proximal term, alpha = eta mu: (1 - alpha)^(tau - 1 - k)."""
    return (1 - alpha) ** np.arange(steps - 1, -1, -1.0)


def momentum(steps: int, rho: float) -> Floats:
    """a [tau] of SGD with momentum rho, its buffer zero at the start of a round:
    (1 - rho^(tau - k)) / (1 - rho).
    """
    return (1 - rho ** np.arange(steps, 0, -1.0)) / (1 - rho)


def decayed(steps: int, gamma: float) -> Floats:
    """a [tau] of SGD whose step size decays by gamma each local step: gamma^k."""
    return gamma ** np.arange(float(steps))


@dataclass(frozen=True)
class Framework:
    """A method: its clients' a_i, and how the server weighs and scales what they send."""

    accumulation: Sequence[Floats]
    """N vectors a_i [tau_i]."""
    weights: Floats
    """[N] w_i; they sum to 1."""
    tau_eff: float
    """Effective steps, by which the server scales the weighted mean."""

    @property
    def steps(self) -> Floats:
        """[N] tau_i."""
        return np.array([len(a) for a in self.accumulation], np.float64)

    @property
    def slowdown(self) -> float:
        """Mean tau_i over tau_eff."""
        return float(self.steps.mean()) / self.tau_eff


def fedavg(share: ArrayLike, accumulation: Sequence[Floats]) -> Framework:
    """Averaging of models: w_i = p_i ||a_i||_1 / tau_eff, tau_eff = sum_i p_i ||a_i||_1 (eq.
    (8)).
    """
    travelled = np.asarray(share) * np.array([a.sum() for a in accumulation])
    return Framework(accumulation, travelled / travelled.sum(), float(travelled.sum()))


def fednova(share: ArrayLike, accumulation: Sequence[Floats], tau_eff: float | None = None) -> Framework:
    """Normalised averaging: w_i = p_i; tau_eff is sum_i p_i tau_i if absent."""
    p = np.asarray(share, np.float64)
    return Framework(
        accumulation, p, float(p @ [len(a) for a in accumulation]) if tau_eff is None else tau_eff
    )


def chi_square(share: ArrayLike, weights: ArrayLike) -> float:
    """chi^2_{p||w} = sum_i (p_i - w_i)^2 / w_i (Theorem 2)."""
    p, w = np.asarray(share), np.asarray(weights)
    return float(((p - w) ** 2 / w).sum())


@dataclass(frozen=True)
class Assumptions:
    """Constants of the problem (Assumptions 1 to 3)."""

    smoothness: float
    """L."""
    variance: float
    """sigma^2, of stochastic gradients."""
    beta_square: float
    """beta^2 of sum_i w_i |grad F_i|^2 <= beta^2 |sum_i w_i grad F_i|^2 + kappa^2; 1 for IID
    data.
    """
    kappa_square: float
    """kappa^2; 0 for IID data."""


@dataclass(frozen=True)
class Constants:
    """A, B and C of Theorem 1."""

    a: float
    """m tau_eff sum_i w_i^2 ||a_i||_2^2 / ||a_i||_1^2 (eq. (10))."""
    b: float
    """Lambda sum_i w_i (tau_i - 1) ||a_i||_2^2 / ||a_i||_1 (eq. (11))."""
    c: float
    """Lambda^2 max_i tau_i (tau_i - 1) (eq. (12))."""


def constants(framework: Framework) -> Constants:
    """Return A, B and C of a method.

    Lambda is the largest entry of all a_i: 1 for plain SGD, up to 1 / (1 - rho) with momentum.
    """
    travelled = np.array([a.sum() for a in framework.accumulation])
    square = np.array([a @ a for a in framework.accumulation])
    largest, tau, w = max(float(a.max()) for a in framework.accumulation), framework.steps, framework.weights
    return Constants(
        a=float(len(w) * framework.tau_eff * (w**2 * square / travelled**2).sum()),
        b=float(largest * (w * (tau - 1) * square / travelled).sum()),
        c=float(largest**2 * (tau * (tau - 1)).max()),
    )


def sampled_a(share: ArrayLike, framework: Framework) -> float:
    """A' = tau_eff sum_i (w_i^2 / p_i) ||a_i||_2^2 / ||a_i||_1^2, which with q clients drawn by p_i
    takes the place of A / m as A' / q.

    Of Theorem 3, as its proof has it (eq. (71)): the statement is not legible in the copy at hand.
    """
    travelled = np.array([a.sum() for a in framework.accumulation])
    square = np.array([a @ a for a in framework.accumulation])
    return float(framework.tau_eff * (framework.weights**2 / np.asarray(share) * square / travelled**2).sum())


def largest_step_size(framework: Framework, problem: Assumptions) -> float:
    """The largest eta for which Theorem 1 is proved, 1/(2 L) min(1 / (max_i ||a_i||_1 sqrt(2
    beta^2 + 1)), 1 / tau_eff) (eq. (53)).
    """
    farthest = max(float(a.sum()) for a in framework.accumulation) * np.sqrt(2 * problem.beta_square + 1)
    return float(1 / (2 * problem.smoothness * max(farthest, framework.tau_eff)))


def optimisation_error(
    framework: Framework, problem: Assumptions, gap: float, eta: float, rounds: ArrayLike
) -> Floats:
    """The bound on min_t E|grad F~|^2 of the surrogate F~ = sum_i w_i F_i after `rounds` [T]
    (Theorem 1 with its step size eta, eq. (49)).

        4 gap / (eta tau_eff T) + 4 eta L sigma^2 A / m + 6 eta^2 L^2 sigma^2 B
            + 12 eta^2 L^2 kappa^2 C

    `gap` is F~(x_0) - F~_inf. Raises ValueError for an eta beyond `largest_step_size`, where it is
    no bound.
    """
    largest = largest_step_size(framework, problem)
    if eta > largest * (1 + 1e-12):
        raise ValueError(
            f"the bound holds for step sizes up to {largest:.6g} (FedNova, eq. (53)), not for {eta:.6g}"
        )
    found, count, size = constants(framework), len(framework.weights), problem.smoothness
    floor = 4 * eta * size * problem.variance * found.a / count
    floor += (
        6 * (eta * size) ** 2 * problem.variance * found.b
        + 12 * (eta * size) ** 2 * problem.kappa_square * found.c
    )
    return 4 * gap / (eta * framework.tau_eff * np.asarray(rounds, np.float64)) + floor


def step_size(framework: Framework, rounds: int) -> float:
    """eta = sqrt(m / (mean tau T)), which Theorem 1 takes when the number of rounds is given in
    advance, and large enough for eq. (53).
    """
    return float(np.sqrt(len(framework.weights) / (framework.steps.mean() * rounds)))


def gradient_bound(share: ArrayLike, framework: Framework, problem: Assumptions, error: ArrayLike) -> Floats:
    """The bound on min_t E|grad F|^2 of the true objective, given that of the surrogate (Theorem
    2).

    2 [chi^2 (beta^2 - 1) + 1] error + 2 chi^2 kappa^2
    """
    bias = chi_square(share, framework.weights)
    return 2 * (bias * (problem.beta_square - 1) + 1) * np.asarray(error, np.float64) + inconsistency_floor(
        share, framework, problem
    )


def inconsistency_floor(share: ArrayLike, framework: Framework, problem: Assumptions) -> float:
    """2 chi^2 kappa^2: the part of the bound that no number of rounds removes (Theorem 2); 0 for
    FedNova.
    """
    return 2 * chi_square(share, framework.weights) * problem.kappa_square


def strongly_convex_order(
    framework: Framework, problem: Assumptions, convexity: float, rounds: ArrayLike
) -> Floats:
    """Order of the bound on the surrogate's error for eta_t = 6 / (c tau_eff (t + gamma)) (Theorem
    4).

    L sigma^2 A / (c^2 m tau_eff T) + L^2 (sigma^2 B + kappa^2 C) / (c^3 tau_eff^2 T^2)
    """
    found, size = constants(framework), problem.smoothness
    travelled = convexity * framework.tau_eff * np.asarray(rounds, np.float64)
    noise = size * problem.variance * found.a / (convexity * len(framework.weights) * travelled)
    return noise + size**2 * (problem.variance * found.b + problem.kappa_square * found.c) / (
        convexity * travelled**2
    )
