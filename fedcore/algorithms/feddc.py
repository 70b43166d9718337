"""FedDC: each client learns how far its local model drifts from the server's, and the server adds the
mean of these drifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.feddyn import MeanAndDrift
from fedcore.algorithms.scaffold import ControlVariates
from fedcore.block import NonNegative
from fedcore.core import (
    AffineForm,
    Aggregate,
    Aggregator,
    ClientContext,
    Cohort,
    Rule,
    Vectors,
)
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DriftVariables(ControlVariates):
    """The gradient of F_i(y) + alpha/2 |h_i + y - x|^2 + <y, c - c_i>.

    The memory `drift` is h_i <- h_i + y - x; c_i and c are SCAFFOLD's control variates.
    """

    assures = ControlVariates.assures
    memory = (*ControlVariates.memory, "drift")
    remembers = "decoded"

    alpha: float = 0.01

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        drift = context.memory["drift"] + y - context.x
        return super().direction(grad, y, context) + self.alpha * drift

    def affine_form(self) -> AffineForm:
        return AffineForm(self.alpha, has_offset=True)

    def remember(self, delta: Tensor, sent: Vectors, x: Tensor, context: ClientContext) -> Vectors:
        control = super().remember(delta, sent, x, context)
        return {**control, "drift": context.memory["drift"] + delta}


@dataclass(frozen=True)
class DriftAveraging(MeanAndDrift):
    """h <- h + (1/N) sum_S delta_i, the mean drift of all clients, and x moves by sum_i w_i delta_i + h."""

    assures = MeanAndDrift.assures

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        mean, total = seen
        h = aggregator_state["h"] + total / cohort.population
        return Aggregate(mean + h, self.coefficients(cohort), {"h": h})


class FedDc(AlgorithmSpec):
    """Each client keeps its drift h_i, how far its training has moved in all its rounds. The local
    objective ties y + h_i to x, and the server averages the models with the drifts added.

        y <- y - eta (g_i(y) + alpha (h_i + y - x) - c_i + c)
        h_i <- h_i + y_i - x,   c_i <- c_i - c + (x - y_i) / (eta tau_i)
        x <- mean_S y_i + (1/N) sum_j h_j,   c <- c + (1/N) sum_S (change of c_i)

    h_i, c_i and c start at zero; clients outside the cohort keep theirs. The paper calls -eta tau c_i
    and -eta tau c the local update g_i and its mean g. This follows the authors' code in two places.
    The paper describes g_i as the change y_i - x of the last round; the code subtracts the correction in
    it, so that c_i is an estimate of the gradient as in SCAFFOLD's option II. With the paper's, the
    corrections alternate in sign and hardly decay. The paper averages y_i + h_i of all clients; if only
    some take part, the code averages y_i over these and h_j over all. Departures from both: tau_i is
    ||a_i||_1, which counts local momentum and the pull of alpha (for plain SGD it is tau_i (1 - O(eta
    alpha tau_i))); alpha and the correction are the same for large and small clients, and gradients are
    clipped only as `local` says. With compression h_i takes the change that the server decoded.
    """

    source = (
        "Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction,"
        " CVPR 2022"
    )
    fixed_point = "the optimum of the uniform sum"
    weighting = "uniform"
    ranges = {"alpha": FloatRange(low=0.001, high=0.1, log=True)}  # FedQ's range

    kind: Literal["feddc"] = "feddc"
    alpha: NonNegative = 0.01
    """Strength of the tie."""

    def rule(self) -> Rule:
        return DriftVariables(alpha=self.alpha)

    def aggregator(self) -> Aggregator:
        return DriftAveraging()
