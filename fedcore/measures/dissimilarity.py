"""Disagreement of the clients' gradients at one model: gradient and surrogate diversity,
B-dissimilarity, variance, and the norm of their mean.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedcore.lazy import np, torch
from fedcore.measures.base import Evaluated, Measured, MeasureInfo, MeasureSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedcore.problems import TrainingProblem

    Floats = NDArray[np.float64]

CHUNK_BYTES = 64 << 20
"""Memory of the gradients of a chunk of clients in float64."""


def dissimilarity(
    problem: TrainingProblem, x: Tensor, surrogate: Floats | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Measured:
    """The five measures at x [D], over all clients.

    With g_i = grad F_i(x) and g = sum_i p_i g_i:

        gradient_diversity   sqrt(sum_i p_i |g_i|^2 / |g|^2)                FedAWARE, Definition 3.1
        surrogate_diversity  sqrt(sum_i p_i |g_i|^2 / |sum_i w_i g_i|^2)    FedAWARE, Definition 3.2
        b_dissimilarity      as the first, but 1 where every g_i = 0        FedProx, Definition 3
        gradient_variance    sum_i p_i |g_i - g|^2                          FedProx, Section 5.3.3
        gradient_norm        |g|                                            FedAWARE, Section 3.3

    w [N] is `surrogate`, the weight of each client's gradient g_i in the round that led to x (its
    weight times p_i N if the objective was transformed), 0 for clients that did not reach the
    server; without such a round there is no surrogate_diversity. A ratio is inf where its
    denominator is 0.
    """
    weights = np.zeros(len(problem.share)) if surrogate is None else surrogate
    found = _moments(problem, x, weights, chunk_bytes)
    ratio = _ratio(found.mean_square, found.square)
    values: Measured = {
        "gradient_diversity": ratio,
        "b_dissimilarity": 1.0 if found.mean_square == 0 else ratio,
        "gradient_variance": max(found.mean_square - found.square, 0.0),
        "gradient_norm": sqrt(found.square),
    }
    return (
        values
        if surrogate is None
        else values | {"surrogate_diversity": _ratio(found.mean_square, found.surrogate_square)}
    )


class _Moments(NamedTuple):
    mean_square: float
    """sum_i p_i |g_i|^2."""
    square: float
    """|g|^2."""
    surrogate_square: float
    """|sum_i w_i g_i|^2."""


def _moments(problem: TrainingProblem, x: Tensor, surrogate: Floats, chunk_bytes: int) -> _Moments:
    """Accumulated in float64 over chunks of clients."""
    means = torch.zeros(2, problem.dim, dtype=torch.float64, device=x.device)
    mean_square = 0.0
    length = max(1, chunk_bytes // (8 * problem.dim))
    for start in range(0, len(problem.share), length):
        clients = np.arange(start, min(start + length, len(problem.share)))
        gradients = problem.client_gradients(x, clients).double()
        weights = torch.from_numpy(np.stack([problem.share[clients], surrogate[clients]])).to(gradients)
        means += weights @ gradients
        mean_square += float(weights[0] @ gradients.square().sum(1))
    square, surrogate_square = means.square().sum(1).tolist()
    return _Moments(mean_square, square, surrogate_square)


def _ratio(mean_square: float, square: float) -> float:
    return inf if square == 0 else sqrt(mean_square / square)


class Dissimilarity(MeasureSpec):
    """Disagreement of the clients' gradients at one model."""

    of = "population"
    infos = (
        MeasureInfo("gradient_diversity", "sqrt(sum p_i |g_i|^2 / |g|^2) (FedAWARE)", "g = 0", least=0.0),
        MeasureInfo(
            "surrogate_diversity",
            "the same divided by |sum w_i g_i|^2 instead of |g|^2; w are the weights with which the round"
            " counted each client: the min-norm weights, or otherwise FedNova's implied weights",
            "the sum is 0, or, without min-norm weights, local steps are not linear in the gradients (`adam`,"
            " `adamw`, `clip_norm`)",
            offered_by=lambda algorithm: not algorithm.reference,
            least=0.0,
        ),
        MeasureInfo(
            "b_dissimilarity",
            "like gradient diversity, but 1 if every g_i = 0 (FedProx)",
            "g = 0 and some g_i is not",
            least=0.0,
        ),
        MeasureInfo("gradient_variance", "sum p_i |g_i - g|^2", least=0.0),
        MeasureInfo("gradient_norm", "|g|", least=0.0),
    )

    kind: Literal["dissimilarity"] = "dissimilarity"

    def compute(self, evaluated: Evaluated) -> Measured:
        return dissimilarity(evaluated.problem, evaluated.x, evaluated.surrogate)
