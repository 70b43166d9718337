"""FedExP (Jhunjhunwala et al., ICLR 2023, Algorithm 1): the server's step size grows with diversity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedq.extensions import Aggregate, Aggregator, AlgorithmSpec, Cohort, PositiveRate, Vectors, torch


@dataclass(frozen=True)
class Extrapolation(Aggregator):
    """eta_g sum_i w_i delta_i, eta_g = max(1, mean |delta_i|^2 / (2 (|mean delta_i|^2 + epsilon)))."""

    epsilon: float

    def weighted_sums(self, cohort: Cohort) -> None:
        """`combine` needs each change."""

    def combine(self, deltas: torch.Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        mean, squares = cohort.mean(deltas), cohort.mean(deltas.square().sum(dim=1))
        eta = (squares / (2 * (mean @ mean + self.epsilon))).clamp(min=1)
        coefficients = eta * cohort.weights
        return Aggregate(coefficients @ deltas, coefficients, aggregator_state)


class OurFedexp(AlgorithmSpec):
    """FedAvg with a server step that is longer the more the clients' changes differ."""

    interface = "2.0"
    source = "Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023"
    fixed_point = "as `fedavg`"
    weighting = "uniform"
    kind: Literal["our_fedexp"] = "our_fedexp"
    epsilon: PositiveRate = 1e-3
    """Keeps the step finite where the changes cancel."""

    def aggregator(self) -> Aggregator:
        return Extrapolation(self.epsilon)
