"""VRLSGD: local SGD whose clients correct their drift by where the last average put them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import AffineForm, ClientContext, Need, Rule, Vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DriftCorrection(Rule):
    """y <- y - eta (g_i(y) - Delta_i), where Delta_i estimates how client i's gradient differs from
    the mean.
    """

    assures = Rule.assures
    memory = ("drift",)
    remembers = "decoded"

    def needs(self) -> frozenset[Need]:
        return frozenset({"normaliser", "next_model"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad - context.memory["drift"]

    def affine_form(self) -> AffineForm:
        return AffineForm(has_offset=True)

    def remember(self, delta: Tensor, sent: Vectors, x: Tensor, context: ClientContext) -> Vectors:
        behind = x - (context.x + delta)
        return {"drift": context.memory["drift"] + behind / (context.lr * context.normaliser)}


class VrlSgd(AlgorithmSpec):
    """Each local step is corrected by the client's drift, learnt from the distance to each new
    average.

        y_i <- y_i - eta (g_i(y_i) - Delta_i)    tau_i times
        x <- mean_i y_i
        Delta_i <- Delta_i + (x - y_i) / (tau_i eta)

    Delta_i starts at zero, so the first round is FedAvg. With equal tau_i and full participation
    the Delta_i sum to zero and the exact minimiser is reached; with unequal tau_i they do not, and
    it may diverge (FedNova, Fig. 2). With local momentum, tau_i becomes ||a_i||_1. Clients outside
    the cohort keep their Delta_i; clients in the cohort download the new x at once. A client counts
    once however often it was drawn, and with compression y_i is what the server decoded: else the
    Delta_i would not sum to zero.
    """

    source = "Liang et al., Variance Reduced Local SGD with Lower Communication Complexity, 2019, Algorithm 1"
    fixed_point = (
        "the optimum of the uniform sum if all clients take the same number of steps; otherwise another"
        " point, or none"
    )
    weighting = "uniform"
    averages_exactly = True

    kind: Literal["vrlsgd"] = "vrlsgd"

    def rule(self) -> Rule:
        return DriftCorrection()
