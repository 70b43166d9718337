"""FedDANE: FedProx whose gradients are corrected by the cohort's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.block import NonNegative
from fedcore.core import AffineForm, ClientContext, Exchange, Need, Rule
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NewtonType(Rule):
    """The gradient of F_i(y) + <g - grad F_i(x), y> + mu/2 |y - x|^2, g the gathered gradient."""

    mu: float = 0.0

    def needs(self) -> frozenset[Need]:
        return frozenset({"full_gradient"})

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        assert context.full_gradient is not None
        assert context.mean_gradient is not None
        return grad - context.full_gradient + context.mean_gradient + self.mu * (y - context.x)

    def affine_form(self) -> AffineForm:
        return AffineForm(self.mu, has_offset=True)


class FedDane(AlgorithmSpec):
    """Each round gathers the gradient at x; the clients then minimise their loss with it in the place of
    their own, and a proximal term.

        g = sum_i w_i grad F_i(x) / sum_i w_i
        y <- y - eta (g_i(y) - grad F_i(x) + g + mu (y - x))    tau_i times
        x <- x + sum_i w_i (y_i - x)

    Departure: the paper draws one cohort for g and another for the steps; here the cohort that trains
    gathers g, which with full participation is the same. The cohort is averaged uniformly unless
    `participation.weighting` says otherwise. With mu = 0 and step sizes divided by tau_i this is FedLin.
    Compression acts on the gradients, as in FedLin.
    """

    source = (
        "Li et al., FedDANE: A Federated Newton-Type Method, Asilomar 2019, Algorithm 2; compared in Li et"
        " al., FedProx, MLSys 2020, Appendix C"
    )
    fixed_point = "the optimum of the uniform sum; close to it if clients compress, unless by EF21"
    example = {"mu": 0.1}
    weighting = "uniform"
    ranges = {"mu": FloatRange(low=0.001, high=1.0, log=True)}  # FedQ's range, FedProx's

    kind: Literal["feddane"] = "feddane"
    mu: NonNegative = 0.0
    """Strength of the proximal term."""

    def rule(self) -> Rule:
        return NewtonType(self.mu)

    def exchange(self) -> Exchange:
        return Exchange()
