"""FedProx: FedAvg whose clients are held near x by a proximal term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec, RoundLaw
from fedcore.block import NonNegative
from fedcore.core import AffineForm, ClientContext, Rule, Tuner
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


STEP, PATIENCE = 0.1, 5
"""Step by which mu changes, and the number of falls of the loss in a row after which it falls."""


@dataclass(frozen=True)
class Proximal(Rule):
    """The gradient of h(y; x) = F(y) + mu/2 |y - x|^2."""

    assures = Rule.assures

    mu: float = 0.0

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad + self.mu * (y - context.x)

    def affine_form(self) -> AffineForm:
        return AffineForm(self.mu)


@dataclass(frozen=True)
class LossDrivenMu(Tuner):
    """mu rises by STEP after a round in which f rose, and falls by it after PATIENCE falls of f."""

    mu: float

    def start(self) -> Mapping[str, float]:
        return {"mu": self.mu, "falls": 0.0}

    def tuned(self, rule: Rule, parameters: Mapping[str, float]) -> Rule:
        assert isinstance(rule, Proximal)
        return replace(rule, mu=parameters["mu"])

    def adapt(self, parameters: Mapping[str, float], loss: float) -> Mapping[str, float]:
        previous = parameters.get("loss", loss)
        mu, falls = parameters["mu"], parameters["falls"] + 1 if loss < previous else 0.0
        if loss > previous:
            mu += STEP
        elif falls == PATIENCE:
            mu, falls = max(0.0, mu - STEP), 0.0
        return {"mu": mu, "falls": falls, "loss": loss}


class FedProx(AlgorithmSpec):
    """Each client minimises h_i(y; x) = F_i(y) + mu/2 |y - x|^2 inexactly, by tau_i SGD steps.

        y <- y - eta (g_i(y) + mu (y - x))

    Partial work of stragglers is kept with `systems.stragglers.policy: accept_partial`; mu = 0 is
    FedAvg. An adaptive mu costs an evaluation of f over all clients in every round; the measure
    gamma_inexactness says how inexactly they solve.
    """

    source = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2"
    fixed_point = "a surrogate optimum, closer to the optimum for larger mu"
    example = {"mu": 0.1}
    averages_models = True
    ranges = {"mu": FloatRange(low=0.001, high=1.0, log=True)}  # the paper's grid: 0.001, 0.01, 0.1, 1

    kind: Literal["fedprox"] = "fedprox"
    mu: NonNegative = 0.01
    """Strength of the proximal term; with `adaptive`, its initial value (in the paper: 1 on IID
    data, else 0).
    """
    adaptive: bool = False
    """Increase mu by 0.1 after each round in which f rose; decrease it by 0.1 after five
    consecutive falls, not below 0 (Section 5.3.2).
    """

    def rule(self) -> Rule:
        return Proximal(self.mu)

    def tuner(self) -> Tuner | None:
        return LossDrivenMu(self.mu) if self.adaptive else None

    def round_law(self, prox_mu: float, *, uniform: bool) -> RoundLaw | None:
        return None if self.adaptive else RoundLaw("averaging", self.mu + prox_mu)
