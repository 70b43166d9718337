"""FedLin and what it improves on: Mitra et al., Linear Convergence in Federated Learning (NeurIPS
2021), Section 2 and Theorems 1 to 4.

f = (1/N) sum_i f_i with L-smooth f_i, client step sizes eta_i = eta_bar / tau_i, no compression.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcore.theory.quadratics import Quadratics, solve_system

Floats = NDArray[np.float64]


def proposition_1(problem: Quadratics, eta: float, steps: int, beta: float = 0.0) -> Floats:
    """[D] what FedProx with H = `steps` and penalty beta minimises instead of f.

    Beta = 0 is FedAvg.

        (sum_i S_i)^-1 sum_i S_i c_i,   S_i = sum_{l < H} (I - eta (A_i + beta I))^l A_i

    for f_i(x) = 1/2 |A_i^{1/2} (x - c_i)|^2: A_i is H_i of `problem`, and A_i c_i its e_i.
    """
    return _minimiser(problem, [_powers(a, eta, steps, beta) for a in problem.hessians])


def proposition_2(problem: Quadratics, eta: float, steps: ArrayLike) -> Floats:
    """[D] what FedNova with tau_i = `steps` [N] minimises instead of f.

    As proposition 1, with S_i = (tau_eff / tau_i) sum_{l < tau_i} (I - eta A_i)^l A_i and tau_eff
    the mean of tau_i.
    """
    tau = np.broadcast_to(steps, problem.share.shape)
    return _minimiser(
        problem,
        [tau.mean() / t * _powers(a, eta, int(t), 0.0) for a, t in zip(problem.hessians, tau, strict=True)],
    )


def strongly_convex_bound(condition: float, gap: float, rounds: ArrayLike) -> Floats:
    """(1 - 1 / (6 kappa))^T gap, the bound on f(x_{T+1}) - f(x*) after `rounds` [T] for
    eta_bar = 1 / (6 L) (Theorem 1); `gap` is f(x_1) - f(x*).
    """
    return (1 - 1 / (6 * condition)) ** np.asarray(rounds, np.float64) * gap


def convex_bound(smoothness: float, start: float, rounds: ArrayLike, end: float = 0.0) -> Floats:
    """10 L / T (|x_1 - x*|^2 - |x_{T+1} - x*|^2), the bound on f(mean of x_1 .. x_T) - f(x*) for
    eta_bar = 1 / (10 L) (Theorem 2).
    """
    return 10 * smoothness * (start - end) / np.asarray(rounds, np.float64)


def gradient_bound(smoothness: float, gap: float, rounds: ArrayLike) -> Floats:
    """52 L / T gap, the bound on min_t |grad f(x_t)|^2 for eta_bar = 1 / (26 L) (Theorem 3); `gap`
    is f(x_1) - f(x_{T+1}).
    """
    return 52 * smoothness * gap / np.asarray(rounds, np.float64)


def noisy_bound(eta_bar: float, convexity: float, variance: float, start: float, rounds: ArrayLike) -> Floats:
    """r^T start + 25 eta_bar^2 sigma^2 (1 - r^T) / (1 - r), the bound on E|x - x*|^2 after `rounds`
    [T] for eta_bar < 1 / (6 L), with r = 1 - eta_bar mu / 2.

    Theorem 4, its recursion summed up; `start` is |x_1 - x*|^2.
    """
    kept = (1 - eta_bar * convexity / 2) ** np.asarray(rounds, np.float64)
    return kept * start + (1 - kept) * noise_floor(eta_bar, convexity, variance)


def noise_floor(eta_bar: float, convexity: float, variance: float) -> float:
    """50 eta_bar sigma^2 / mu: what noise leaves of the bound of Theorem 4 in the long run."""
    return 50 * eta_bar * variance / convexity


def _powers(a: Floats, eta: float, steps: int, beta: float) -> Floats:
    """sum_{l < steps} (I - eta (A + beta I))^l."""
    identity = np.eye(len(a))
    step, total = identity - eta * (a + beta * identity), np.zeros_like(a)
    for _ in range(steps):
        total = identity + step @ total
    return total


def _minimiser(problem: Quadratics, powers: Sequence[Floats]) -> Floats:
    """(sum_i S_i)^-1 sum_i S_i c_i for S_i = `powers`_i A_i.

    A_i c_i = e_i, so that A_i may be singular.
    """
    sums, targets = (
        np.einsum("ide,ief->df", powers, problem.hessians),
        np.einsum("ide,ie->d", powers, problem.linear),
    )
    return solve_system(sums, targets, "the point of rest", "sum_i S_i")
