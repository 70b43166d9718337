"""FedSAM: local steps along the gradient at the worst point nearby."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.assurance import Assurance
from fedcore.core import ClientContext, Rule
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SharpnessAware(Rule):
    """g = grad F_i(y + rho grad F_i(y) / |grad F_i(y)|), both on the same mini-batch."""

    assures = Rule.assures - {Assurance.ONE_GRADIENT}

    rho: float = 0.05

    def gradients_per_step(self) -> int:
        return 2

    def gradient(self, at: Callable[[Tensor], Tensor], y: Tensor, context: ClientContext) -> Tensor:
        ascent = at(y)
        norm = ascent.norm(dim=-1, keepdim=True)
        return at(y + self.rho * ascent / (norm + (norm == 0)))


class FedSam(AlgorithmSpec):
    """FedAvg whose clients minimise the largest loss within distance rho, to first order (SAM).

        e = rho g_i(y) / |g_i(y)|,   y <- y - eta g_i(y + e)
        x <- x + server_lr sum_i w_i (y_i - x)

    A step costs two gradients on the same mini-batch. Weight decay, the proximal term and momentum
    of the local optimiser apply to the second one, private parameters are trained by it and not
    perturbed, and running statistics follow the first. Departure: the variant with momentum between
    rounds, MoFedSAM, is not included. The engine `compiled` declines it. rho -> 0 is FedAvg.
    """

    source = (
        "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022 (FedSAM);"
        " Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021"
    )
    fixed_point = "none in general: steps of SAM do not vanish at a minimum"
    ranges = {"rho": FloatRange(low=0.01, high=0.5, log=True)}  # FedQ's range

    kind: Literal["fedsam"] = "fedsam"
    rho: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 0.05
    """Radius of the neighbourhood."""

    def rule(self) -> Rule:
        return SharpnessAware(self.rho)
