"""FedMGDA+: the server follows the min-norm point of the clients' normalised changes, near their
usual weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.min_norm import inner_products, min_norm, unit_lengths
from fedcore.core import Aggregate, Aggregator, Cohort, Vectors
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CommonDescent(Aggregator):
    """sum_i lambda_i delta_i / |delta_i|, the shortest with |lambda_i - w_i| <= epsilon.

    The book holds the last round's lambda: `clients` [V] and `weights` [V]; nothing is computed
    from it.
    """

    assures = Aggregator.assures

    epsilon: float = 1.0

    def start(self, x: Tensor) -> Vectors:
        return {"clients": x.new_zeros(0).long(), "weights": x.new_zeros(0).double()}

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def combine(self, deltas: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        gram = inner_products(deltas, deltas)
        lengths = unit_lengths(gram)
        centre = cohort.weights.double()
        weights = min_norm(gram * lengths * lengths[:, None], centre / centre.sum(), self.epsilon).to(lengths)
        coefficients = (weights * lengths).to(deltas)
        return Aggregate(coefficients @ deltas, coefficients, {"clients": cohort.clients, "weights": weights})


class FedMgda(AlgorithmSpec):
    """The cohort's changes are scaled to length 1 and combined to the shortest vector: a direction
    of descent for all of them.

        g_i = (x - y_i) / |x - y_i|
        lambda = argmin |sum_i lambda_i g_i|^2
            over the simplex with |lambda_i - w_i| <= epsilon for all i
        x <- x - server_lr sum_i lambda_i g_i

    w are the weights of the participation scheme, made to sum to 1. A change of zero stays zero:
    its client is at an optimum of its own, so no direction serves all, and if lambda may reach 1
    there the model stays.
    """

    source = (
        "Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, Algorithm 1"
        " (FedMGDA+)"
    )
    fixed_point = "a point from which no direction improves all objectives"
    example = {"epsilon": 0.1, "server_lr": 0.5}
    min_norm = True
    ranges = {"epsilon": FloatRange(low=0.0, high=1.0)}  # all values that the paper defines

    kind: Literal["fedmgda"] = "fedmgda"
    epsilon: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Maximum distance of lambda from w: 1 allows the whole simplex (MGDA), 0 only w (normalised
    FedAvg).
    """

    def aggregator(self) -> Aggregator:
        return CommonDescent(self.epsilon)
