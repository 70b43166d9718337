"""Contribution of each client to a round: implied weights, their bias, effective steps, slowdown."""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING, Literal

from fedcore.lazy import np
from fedcore.measures.base import Evaluated, Measured, MeasureInfo, MeasureSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedcore.engine.assignment import Observation

    Floats = NDArray[np.float64]


def implied_weights(observation: Observation) -> tuple[Floats, float]:
    """w [M] and tau_eff, by which every round is x <- x - tau_eff sum_i w_i eta d_i (FedNova, eqs.
    (8) to (10)).

    With c_i the coefficient of Delta_i in the server's direction and ||a_i||_1 the normaliser:

        tau_eff = sum_i c_i ||a_i||_1,   w_i = c_i ||a_i||_1 / tau_eff

    For FedAvg c_i = p_i, for FedNova c_i = p_i tau_eff / ||a_i||_1. The server's own step size is
    left out. A round in which no client counted (FedAWARE may follow others' momenta alone) has no
    weights: NaN, and tau_eff 0.
    """
    travelled = _array(observation.combined.coefficients) * _array(observation.cohort.normaliser)
    tau_eff = float(travelled.sum())
    return travelled / (tau_eff or nan), tau_eff


def surrogate_weights(observation: Observation, population: int) -> Floats:
    """w [N] over all clients: the min-norm weights, or else the implied weights of the round's
    clients and 0 elsewhere.
    """
    weights = hull_weights(observation, population)
    if weights is None:
        weights = np.zeros(population)
        weights[observation.work.clients], _ = implied_weights(observation)
    return weights


def hull_weights(observation: Observation, population: int) -> Floats | None:
    """lambda [N] of FedAWARE or FedMGDA+, 0 for clients outside the hull.

    None for an algorithm without a min-norm point.
    """
    book = observation.combined.aggregator_state
    if "weights" not in book:
        return None
    weights = np.zeros(population)
    weights[book["clients"].numpy(force=True)] = _array(book["weights"])
    return weights


def chi_square(p: Floats, w: Floats) -> float:
    """sum_i (p_i - w_i)^2 / w_i; a term of 0/0 is 0, one over 0 makes it inf."""
    gap = (p - w) ** 2
    if (gap[w == 0] > 0).any():
        return inf
    return float((gap[w != 0] / w[w != 0]).sum())


def _array(weights: Tensor) -> Floats:
    return np.asarray(weights.numpy(force=True), np.float64)


NO_NORMALISER = "local steps are not linear in the gradients (`adam`, `adamw`, `clip_norm`)"


class Contribution(MeasureSpec):
    """Weight bias, effective steps and slowdown of a round."""

    of = "round"
    infos = (
        MeasureInfo(
            "weight_bias",
            "chi^2 of the implied weights w_i = c_i ||a_i||_1 / tau_eff against the aggregation weights"
            " p_i: sum (p_i - w_i)^2 / w_i (FedNova)",
            f"no client counted, or one did not, or {NO_NORMALISER}",
        ),
        MeasureInfo("tau_eff", "sum c_i ||a_i||_1 (FedNova)", NO_NORMALISER),
        MeasureInfo("slowdown", "mean tau_i / tau_eff", f"no client counted, or {NO_NORMALISER}"),
    )

    kind: Literal["contribution"] = "contribution"

    def compute(self, evaluated: Evaluated) -> Measured:
        """Weight bias, effective steps and slowdown of a round.

        Of its M clients, p are the aggregation weights, made to sum to 1, and w and tau_eff what
        `implied_weights` returns:

            weight_bias  sum_i (p_i - w_i)^2 / w_i    FedNova, chi^2_{p||w} of Theorem 2
            tau_eff      sum_i c_i ||a_i||_1          FedNova, eq. (9)
            slowdown     (1/M) sum_i tau_i / tau_eff  FedNova, Section V

        weight_bias is inf where only w_i is 0. It is what unequal local work adds to the sampling
        scheme: 0 for FedNova, and for FedAvg with equal work.
        """
        observation = evaluated.round
        assert observation is not None
        weights, tau_eff = implied_weights(observation)
        given = _array(observation.cohort.weights)
        return {
            "weight_bias": chi_square(given / given.sum(), weights),
            "tau_eff": tau_eff,
            "slowdown": float(observation.work.steps.mean()) / (tau_eff or nan),
        }


class MinNorm(MeasureSpec):
    """The min-norm weights of algorithms that follow a min-norm point."""

    of = "round"
    infos = (
        MeasureInfo(
            "fedaware_chi_square",
            "sum lambda_i^2 / p_i^2, as defined by FedAWARE, which differs from FedNova's",
            "p_i = 0 where lambda_i is not",
            offered_by=lambda algorithm: algorithm.min_norm,
            least=0.0,
        ),
        MeasureInfo(
            "min_norm_weights",
            "lambda of algorithms that follow a min-norm point, by client id, 0 outside the hull; at most"
            " 1,000 clients, not available in figures",
            axes=("client",),
            offered_by=lambda algorithm: algorithm.min_norm,
            least=0.0,
        ),
    )

    kind: Literal["min_norm"] = "min_norm"

    def compute(self, evaluated: Evaluated) -> Measured:
        """The min-norm weights lambda, and how far they are from p; empty for other algorithms.

            min_norm_weights     lambda [N], by client id; 0 for those outside the hull
            fedaware_chi_square  sum_i lambda_i^2 / p_i^2     FedAWARE, Theorem 4.2, not FedNova's chi^2

        The latter is inf where only p_i is 0.
        """
        assert evaluated.round is not None
        share = evaluated.problem.share
        weights = hull_weights(evaluated.round, len(share))
        if weights is None:
            return {}
        counted = weights != 0
        with np.errstate(divide="ignore"):
            ratios = weights[counted] / share[counted]
        return {"min_norm_weights": weights.tolist(), "fedaware_chi_square": float(ratios @ ratios)}
