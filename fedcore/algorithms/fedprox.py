"""FedProx: FedAvg whose clients are held near x by a proximal term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import Local, Rule
from fedcore.spec.base import NonNegative

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Proximal(Rule):
    """The gradient of h(y; x) = F(y) + mu/2 |y - x|^2."""

    mu: float = 0.0

    def direction(self, grad: Tensor, y: Tensor, local: Local) -> Tensor:
        return grad + self.mu * (y - local.x)


class FedProx(AlgorithmSpec):
    """Each client minimises h_i(y; x) = F_i(y) + mu/2 |y - x|^2 inexactly, by tau_i SGD steps.

        y <- y - eta (g_i(y) + mu (y - x))

    Partial work of stragglers is kept with `systems.stragglers.policy: accept_partial`; mu = 0 is FedAvg.
    """

    source = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2"

    kind: Literal["fedprox"] = "fedprox"
    mu: NonNegative = 0.01
    """Strength of the proximal term."""

    def rule(self) -> Rule:
        return Proximal(self.mu)
