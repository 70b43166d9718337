"""FedSplit: operator splitting, whose fixed points are the true optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import AffineForm, Aggregator, ClientContext, Cohort, Rule, Vectors
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Splitting(Rule):
    """The gradient of F_i(y) + 1/(2s) |y - (2x - z_i)|^2, with z_i <- z_i + 2 (y - x) at the end of
    the round.
    """

    assures = Rule.assures
    memory = ("z",)
    remembers = "decoded"

    s: float = 1.0

    def start(self, x: Tensor) -> Vectors:
        return {"z": x}

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        reflected = 2 * context.x - context.memory["z"]
        return grad + (y - reflected) / self.s

    def affine_form(self) -> AffineForm:
        return AffineForm(1 / self.s, has_offset=True)

    def remember(self, delta: Tensor, sent: Vectors, x: Tensor, context: ClientContext) -> Vectors:
        return {"z": context.memory["z"] + 2 * delta}


@dataclass(frozen=True)
class MeanOfCentres(Aggregator):
    """2 sum_S v_i delta_i: what the cohort's new z_i change in sum_i v_i z_i over all N clients,
    however often one was drawn.
    """

    assures = Aggregator.assures

    def coefficients(self, cohort: Cohort) -> Tensor:
        return 2 * cohort.objective


class FedSplit(AlgorithmSpec):
    """Peaceman-Rachford splitting: each client takes a proximal step from its reflected centre z_i,
    and x is the mean of all z_i.

        x_i ~ prox_{s F_i}(2x - z_i) = argmin F_i(u) + 1/(2s) |u - (2x - z_i)|^2
        z_i <- z_i + 2 (x_i - x),   x <- sum_i v_i z_i

    v_i is 1/N, or p_i with `weighting: samples`. z_i starts at the first model. The proximal step
    is tau_i local SGD steps from x, so the fixed point is the minimiser of sum_i v_i F_i however
    few they are. A client sends x_i - x. Departure: the paper has every client in every round; with
    a cohort S the server adds the changes of v_i z_i over S, so x stays the weighted mean of all
    z_i. With compression z_i takes what the server decoded, for the same reason.
    """

    source = (
        "Pathak and Wainwright, FedSplit: An Algorithmic Framework for Fast Federated Optimization, NeurIPS"
        " 2020, Algorithm 1"
    )
    fixed_point = "the optimum of the uniform sum"
    weighting = "uniform"
    averages_exactly = True
    ranges = {"s": FloatRange(low=0.01, high=10.0, log=True)}  # FedQ's range

    kind: Literal["fedsplit"] = "fedsplit"
    s: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Step size of the proximal steps."""

    def rule(self) -> Rule:
        return Splitting(self.s)

    def aggregator(self) -> Aggregator:
        return MeanOfCentres()
