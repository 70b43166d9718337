"""FedAvg on strongly convex, smooth clients with a decaying step size: Li et al., On the
Convergence of FedAvg on Non-IID Data.

Of their poster's bound: F_k is L-smooth and mu-strongly convex, stochastic gradients of client k
have variance at most sigma_k^2 and mean square at most G^2, each round is E local steps, and
eta_t = 2 / (mu (gamma + t)), t counting local steps.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FedAvgConstants:
    """Constants of problem and method in the bound."""

    smoothness: float
    """L."""
    convexity: float
    """mu."""
    share: ArrayLike
    """[N] p_k."""
    variance: ArrayLike
    """[N] sigma_k^2."""
    gradient_square: float
    """G^2."""
    heterogeneity: float
    """Gamma = F* - sum_k p_k F_k*; 0 for IID data."""
    local_steps: int
    """E."""

    @property
    def condition(self) -> float:
        """kappa = L / mu."""
        return self.smoothness / self.convexity

    @property
    def offset(self) -> float:
        """gamma = max(9 kappa, E), as printed."""
        return max(9 * self.condition, self.local_steps)

    @property
    def local_error(self) -> float:
        """B = sum_k p_k^2 sigma_k^2 + 6 L Gamma + 8 (E - 1)^2 G^2."""
        noise = float(np.square(self.share) @ np.asarray(self.variance))
        return (
            noise
            + 6 * self.smoothness * self.heterogeneity
            + 8 * (self.local_steps - 1) ** 2 * self.gradient_square
        )


def sampling_error(constants: FedAvgConstants, clients_per_round: int, *, replacement: bool) -> float:
    """C = 4 E^2 G^2 / K for S1, drawn with replacement.

    For S2 that times (N - K) / (N - 1), which is 0 for K = N.
    """
    square = 4 * constants.local_steps**2 * constants.gradient_square / clients_per_round
    if replacement:
        return square
    population = len(np.asarray(constants.share))
    return square * (population - clients_per_round) / max(population - 1, 1)


def bound(constants: FedAvgConstants, rounds: ArrayLike, start: float, sampling: float = 0.0) -> Floats:
    """The bound on E F(w) - F* after `rounds` [T], T = E rounds local steps.

        2 kappa / (gamma + T) ((B + C) / mu + 2 L |w_0 - w*|^2)

    `start` is |w_0 - w*|^2, `sampling` is C; 0 is full participation.
    """
    steps = constants.local_steps * np.asarray(rounds, np.float64)
    size = (constants.local_error + sampling) / constants.convexity + 2 * constants.smoothness * start
    return 2 * constants.condition / (constants.offset + steps) * size


def rounds_order(constants: FedAvgConstants, clients_per_round: int) -> float:
    """A quantity proportional to the rounds to a given accuracy: large for too few and for too many
    local steps.

    (1 + 1/K) E G^2 + (sum_k p_k^2 sigma_k^2 + L Gamma + kappa G^2) / E
    """
    noise = float(np.square(constants.share) @ np.asarray(constants.variance))
    fixed = (
        noise
        + constants.smoothness * constants.heterogeneity
        + constants.condition * constants.gradient_square
    )
    many = (1 + 1 / clients_per_round) * constants.local_steps * constants.gradient_square
    return many + fixed / constants.local_steps
