"""FedProx's expected decrease a round: Li et al., Federated Optimization in Heterogeneous Networks,
Theorems 4, 6 and 11.

F_k is L-smooth with Hessians above -L_- I, mu > L_-, local problems are solved to
gamma-inexactness, clients are B-dissimilar, and K of them are drawn a round:
E f(w^{t+1}) <= f(w^t) - rho |grad f(w^t)|^2.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class ProxAssumptions:
    """Constants of problem and method."""

    smoothness: float
    """L."""
    mu: float
    """Strength of the proximal term."""
    gamma: float
    """Inexactness; where it varies, the largest of the round (Corollary 9)."""
    clients_per_round: int
    """K."""
    concavity: float = 0.0
    """L_-; 0 for convex clients."""


def rho(given: ProxAssumptions, dissimilarity: float) -> float:
    """rho of Theorem 4 for B = `dissimilarity`.

    Where it is not positive the theorem promises nothing.

    1/mu - gamma B/mu - B (1+gamma) sqrt(2) / (mubar sqrt(K)) - L B (1+gamma) / (mubar mu) - L
    (1+gamma)^2 B^2 / (2 mubar^2)
         - L B^2 (1+gamma)^2 (2 sqrt(2K) + 2) / (mubar^2 K),   mubar = mu - L_-
    """
    strength, reach = given.mu - given.concavity, dissimilarity * (1 + given.gamma)
    if strength <= 0:
        raise ValueError(f"mu ({given.mu:g}) must exceed L_- ({given.concavity:g})")
    sampled = sqrt(2 / given.clients_per_round) / strength
    spread = (
        given.smoothness
        * (2 * sqrt(2 * given.clients_per_round) + 2)
        / (strength**2 * given.clients_per_round)
    )
    linear = given.gamma * dissimilarity / given.mu + reach * (
        sampled + given.smoothness / (strength * given.mu)
    )
    return 1 / given.mu - linear - reach**2 * (given.smoothness / (2 * strength**2) + spread)


def dissimilarity_of(variance: float, accuracy: float) -> float:
    """The B that a gradient variance sigma^2 allows where |grad f|^2 >= `accuracy`:
    sqrt(1 + sigma^2 / epsilon) (Corollary 10).
    """
    return sqrt(1 + variance / accuracy)


def mean_gradient(decrease: float, gap: float, rounds: ArrayLike) -> NDArray[np.float64]:
    """The bound gap / (rho T) on the mean of E|grad f|^2 over `rounds` [T] (Theorem 6).

    `gap` is f(w^0) - f*, `decrease` is rho.
    """
    return gap / (decrease * np.asarray(rounds, np.float64))
