"""FedCM: local steps along the mean movement of the last cohort, which costs no message of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import Aggregate, ClientContext, Cohort, Need, Rule, Vectors
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClientLevelMomentum(Rule):
    """y <- y - eta (alpha g_i(y) - (1 - alpha) m / (eta ||a_i||_1)), with the server's last move m."""

    assures = Rule.assures
    shared = ("movement",)

    alpha: float = 0.1

    def needs(self) -> frozenset[Need]:
        return frozenset({"normaliser"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        movement = context.shared["movement"] / (context.lr * context.normaliser)
        return self.alpha * grad - (1 - self.alpha) * movement

    def move_shared(self, shared: Vectors, sent: Vectors, cohort: Cohort, aggregate: Aggregate) -> Vectors:
        return {"movement": aggregate.direction}


class FedCm(AlgorithmSpec):
    """Clients descend along a mixture of their gradient and the direction in which the last cohort moved.

        y <- y - eta (alpha g_i(y) + (1 - alpha) Delta_i),   Delta_i = -m / (eta tau_i)
        m <- sum_i w_i (y_i - x),   x <- x + server_lr m

    m starts at zero, and the server makes it of the changes that it receives anyway, so clients send what
    FedAvg's do; they receive m beside the model. With local momentum tau_i becomes ||a_i||_1. Departure:
    the paper, whose clients take K steps each, divides by eta K at the server; here each client divides by
    its own steps and its present step size, so that m moves all clients alike. The cohort is averaged
    uniformly unless `participation.weighting` says otherwise. alpha = 1 is FedAvg. The paper decays weights
    and step sizes: `local` has options for both.
    """

    source = "Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021, Algorithm 2"
    fixed_point = "a surrogate optimum"
    weighting = "uniform"
    ranges = {"alpha": FloatRange(low=0.01, high=1.0, log=True)}  # FedQ's range

    kind: Literal["fedcm"] = "fedcm"
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Weight of the client's own gradient."""

    def rule(self) -> Rule:
        return ClientLevelMomentum(self.alpha)
