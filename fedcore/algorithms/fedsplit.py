"""FedSplit: operator splitting, whose fixed points are the true optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import Aggregator, Cohort, Local, Rule, Upload, Vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Splitting(Rule):
    """The gradient of F_i(y) + 1/(2s) |y - (2x - z_i)|^2, with z_i <- z_i + 2 (y - x) after the last step."""

    s: float = 1.0

    def memory(self) -> tuple[str, ...]:
        return ("z",)

    def start(self, x: Tensor) -> Vectors:
        return {"z": x}

    def direction(self, grad: Tensor, y: Tensor, local: Local) -> Tensor:
        reflected = 2 * local.x - local.memory["z"]
        return grad + (y - reflected) / self.s

    def finish(self, y: Tensor, local: Local) -> Upload:
        change = 2 * (y - local.x)
        return Upload(change, memory={"z": local.memory["z"] + change})


@dataclass(frozen=True)
class MeanOfAll(Aggregator):
    """(M/N) sum_i w_i delta_i: with equal weights what the M clients change in a mean over all N."""

    def coefficients(self, cohort: Cohort) -> Tensor:
        return cohort.weights * (len(cohort.weights) / cohort.population)


class FedSplit(AlgorithmSpec):
    """Peaceman-Rachford splitting: each client takes a proximal step from its reflected centre z_i, and x is the mean of all z_i.

        x_i ~ prox_{s F_i}(2x - z_i) = argmin F_i(u) + 1/(2s) |u - (2x - z_i)|^2
        z_i <- z_i + 2 (x_i - x),   x <- mean_i z_i

    z_i starts at the first model. The proximal step is tau_i local SGD steps from x, so the fixed point is the minimiser of
    the uniform sum however few they are. What a client sends is the change of z_i. Departure: the paper has every client in
    every round; with a cohort S the server adds (1/N) sum_S of the changes, so x stays the mean of all z_i.
    """

    source = "Pathak and Wainwright, FedSplit: An Algorithmic Framework for Fast Federated Optimization, NeurIPS 2020, Algorithm 1"
    weighting = "uniform"
    averages_exactly = True

    kind: Literal["fedsplit"] = "fedsplit"
    s: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Step size of the proximal steps."""

    def rule(self) -> Rule:
        return Splitting(self.s)

    def aggregator(self) -> Aggregator:
        return MeanOfAll()
