"""FedExP: FedAvg with a server step size that grows with the diversity of the clients' changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import Aggregate, Aggregator, Cohort, Vectors
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Extrapolation(Aggregator):
    """eta_g sum_i w_i Delta_i for the deltas [M, D], with the step size eta_g of the round."""

    assures = Aggregator.assures

    epsilon: float = 1e-3

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def combine(self, deltas: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        mean = cohort.mean(deltas)
        squares = cohort.mean((deltas * deltas).sum(1))
        step_size = (squares / (2 * (mean @ mean + self.epsilon))).clamp(min=1.0)
        coefficients = step_size * cohort.weights
        return Aggregate(coefficients @ deltas, coefficients, aggregator_state)


class FedExp(AlgorithmSpec):
    """FedAvg that extrapolates: the server step size grows as the clients' changes point apart.

        eta_g = max(1, sum_i |Delta_i|^2 / (2 M (|mean_i Delta_i|^2 + epsilon))),   Delta_i = y_i - x
        x <- x + server_lr eta_g mean_i Delta_i

    With weights w_i, both means in eta_g are sum_i w_i (.) / sum_i w_i, and the server adds
    eta_g sum_i w_i Delta_i; equal weights of 1/M give the line above. With one client, or clients
    that agree, eta_g is 1: FedAvg. Departures: the model that is evaluated is the last iterate, not
    the mean of the last two; with compression Delta_i is the change that the server decoded.
    """

    source = (
        "Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023,"
        " Algorithm 1"
    )
    fixed_point = "as `fedavg`"
    weighting = "uniform"
    ranges = {"epsilon": FloatRange(low=0.0001, high=0.1, log=True)}  # FedQ's range

    kind: Literal["fedexp"] = "fedexp"
    epsilon: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1e-3
    """Positive number that keeps the step size finite where the changes cancel."""

    def aggregator(self) -> Aggregator:
        return Extrapolation(self.epsilon)
