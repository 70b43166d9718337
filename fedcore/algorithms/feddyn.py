"""FedDyn: dynamic regularisation, which makes the clients' optima agree with the server's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
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
class DynamicRegulariser(Rule):
    """The gradient of F_k(y) - <g_k, y> + alpha/2 |y - x|^2, with g_k <- g_k - alpha (y - x) at the
    end of the round.
    """

    assures = Rule.assures
    memory = ("gradient",)
    remembers = "decoded"

    alpha: float = 0.1

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad - context.memory["gradient"] + self.alpha * (y - context.x)

    def affine_form(self) -> AffineForm:
        return AffineForm(self.alpha, has_offset=True)

    def remember(self, delta: Tensor, sent: Vectors, x: Tensor, context: ClientContext) -> Vectors:
        return {"gradient": context.memory["gradient"] - self.alpha * delta}


@dataclass(frozen=True)
class MeanAndDrift(Aggregator):
    """Base of aggregators whose direction is the mean change and a part of h [D], to which each round adds
    a part of sum_S delta_k / N.
    """

    assures = Aggregator.assures

    def start(self, x: Tensor) -> Vectors:
        return {"h": x.new_zeros(x.shape)}

    def vectors_kept(self) -> tuple[int, int]:
        return 1, 0

    def coefficients(self, cohort: Cohort) -> Tensor:
        return cohort.weights + 1 / cohort.population

    def weighted_sums(self, cohort: Cohort) -> Tensor:
        sums = cohort.weights.new_ones((2, len(cohort.weights)))
        sums[0] = cohort.weights
        return sums

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        raise NotImplementedError


@dataclass(frozen=True)
class DynamicAveraging(MeanAndDrift):
    """h <- h - (alpha/N) sum_S delta_k, and x moves by mean_S delta_k - h/alpha."""

    assures = Aggregator.assures

    alpha: float = 0.1

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        mean, total = seen
        h = aggregator_state["h"] - self.alpha / cohort.population * total
        return Aggregate(mean - h / self.alpha, self.coefficients(cohort), {"h": h})


class FedDyn(AlgorithmSpec):
    """Each client minimises F_k less a linear term that it learns, near x.

    The server leans the mean against their drift.

        th_k ~ argmin F_k(th) - <g_k, th> + alpha/2 |th - x|^2,   g_k <- g_k - alpha (th_k - x)
        h <- h - (alpha/N) sum_S (th_k - x),                      x <- mean_S th_k - h/alpha

    The minimisation is tau_k local SGD steps from x, as everywhere; any number of them has the
    minimiser of the uniform sum as its fixed point. g_k and h start at zero; clients outside the
    cohort keep their g_k. With compression g_k takes the change that the server decoded, so that h
    stays the mean of all g_k.
    """

    source = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1"
    fixed_point = "the optimum of the uniform sum"
    weighting = "uniform"
    ranges = {"alpha": FloatRange(low=0.001, high=0.1, log=True)}  # the paper's grid: 0.001, 0.01, 0.1

    kind: Literal["feddyn"] = "feddyn"
    alpha: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 0.1
    """Strength of the regulariser."""

    def rule(self) -> Rule:
        return DynamicRegulariser(self.alpha)

    def aggregator(self) -> Aggregator:
        return DynamicAveraging(self.alpha)
