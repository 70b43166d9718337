"""How far the clients' gradients disagree at one model: gradient diversity, B-dissimilarity, gradient variance."""

from collections.abc import Collection
from math import inf, sqrt

import numpy as np
import torch
from torch import Tensor

from fedcore.problems import Problem

NAMES = frozenset({"gradient_diversity", "b_dissimilarity", "gradient_variance"})
CHUNK_BYTES = 256 << 20


def dissimilarity(problem: Problem, x: Tensor, measures: Collection[str]) -> dict[str, float]:
    """The asked-for of the three at x [D], over all clients weighted by p_i.

    With g_i = grad F_i(x) and g = sum_i p_i g_i:

        gradient_diversity  sqrt(sum_i p_i |g_i|^2 / |g|^2)       FedAWARE, Section III; inf where g = 0
        b_dissimilarity     the same, but 1 where every g_i = 0   FedProx, Definition 3
        gradient_variance   sum_i p_i |g_i - g|^2                 FedProx, Section 5.3.3
    """
    wanted = NAMES.intersection(measures)
    if not wanted:
        return {}
    mean_square, square = _moments(problem, x)
    ratio = sqrt(mean_square / square) if square > 0 else inf
    values = {
        "gradient_diversity": ratio,
        "b_dissimilarity": 1.0 if mean_square == 0 else ratio,
        "gradient_variance": max(mean_square - square, 0.0),
    }
    return {name: values[name] for name in sorted(wanted)}


def _moments(problem: Problem, x: Tensor) -> tuple[float, float]:
    """sum_i p_i |g_i|^2 and |g|^2, accumulated in float64 over chunks of clients."""
    mean = torch.zeros_like(x, dtype=torch.float64)
    mean_square = 0.0
    length = max(1, CHUNK_BYTES // (8 * problem.dim))
    for start in range(0, len(problem.share), length):
        clients = np.arange(start, min(start + length, len(problem.share)))
        gradients = problem.client_gradients(x, clients).double()
        share = torch.from_numpy(problem.share[clients]).to(gradients)
        mean += share @ gradients
        mean_square += float(share @ gradients.square().sum(1))
    return mean_square, float(mean.square().sum())
