"""MimeLite: local steps with the server's momentum, which stays constant during a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.assurance import Assurance
from fedcore.block import Decay
from fedcore.core import Aggregate, ClientContext, Cohort, Need, Rule, Vectors
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ServerMomentum(Rule):
    """y <- y - eta ((1 - beta) g_i(y) + beta m), with the momentum m of the server."""

    assures = Rule.assures - {Assurance.CHANGE_ALONE, Assurance.NOISY_GRADIENTS}
    shared = sent = ("momentum",)

    beta: float = 0.9

    def needs(self) -> frozenset[Need]:
        return frozenset({"full_gradient"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return (1 - self.beta) * grad + self.beta * context.shared["momentum"]

    def sends(self, delta: Tensor, context: ClientContext) -> Vectors:
        assert context.full_gradient is not None
        return {"momentum": context.full_gradient}

    def move_shared(self, shared: Vectors, sent: Vectors, cohort: Cohort, aggregate: Aggregate) -> Vectors:
        mean = cohort.mean(sent["momentum"])
        return {"momentum": (1 - self.beta) * mean + self.beta * shared["momentum"]}


class MimeLite(AlgorithmSpec):
    """Clients mimic a central method with momentum: they apply the server's momentum in every local
    step, and the server updates it by their full gradients at x.

        y <- y - eta ((1 - beta) g_i(y) + beta m)
        m <- (1 - beta) mean_S(grad F_i(x)) + beta m,   x <- x + server_lr mean_S(y_i - x)

    m starts at zero. Departures: the base method is SGD with momentum; base methods with adaptive
    statistics are left out, as is the correction of Mime by control variates. The cohort is
    averaged uniformly unless `participation.weighting` says otherwise. beta = 0 is FedAvg.
    """

    source = (
        "Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning, NeurIPS"
        " 2021, MimeLite with the base method SGDm"
    )
    fixed_point = "the optimum of the uniform sum if every client takes one step"
    weighting = "uniform"
    ranges = {"beta": FloatRange(low=0.0, high=0.99)}  # FedQ's range

    kind: Literal["mimelite"] = "mimelite"
    beta: Decay = 0.9
    """Momentum."""

    def rule(self) -> Rule:
        return ServerMomentum(self.beta)
