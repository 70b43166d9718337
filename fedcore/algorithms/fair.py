"""q-FedAvg and AFL: clients with a high loss count more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.block import NonNegative, PositiveRate
from fedcore.core import Aggregate, Aggregator, Cohort, CohortNeed, Vectors
from fedcore.lazy import torch
from fedcore.ranges import FloatRange

if TYPE_CHECKING:
    from torch import Tensor

LEAST_LOSS = 1e-10
"""Losses below this count as this: powers of zero and of negative losses are undefined."""


@dataclass(frozen=True)
class FairStep(Aggregator):
    """W sum_i w_i F_i^q Delta_i / sum_i w_i h_i, for the deltas [M, D]."""

    assures = Aggregator.assures

    q: float
    smoothness: float

    def needs(self) -> frozenset[CohortNeed]:
        return frozenset({"losses"})

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def combine(self, deltas: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        assert cohort.losses is not None
        losses = cohort.losses.clamp(min=LEAST_LOSS)
        # Divided by the largest one's power: a high q overflows no type.
        largest = losses.max()
        powers = (losses / largest) ** self.q
        slopes = self.q * (losses / largest) ** (self.q - 1) / largest
        h = slopes * self.smoothness * (deltas * deltas).sum(1) + powers
        total = cohort.weights.sum()
        coefficients = total * cohort.weights * powers / (cohort.weights @ h + (total == 0))
        return Aggregate(coefficients @ deltas, coefficients, aggregator_state)


class QFedAvg(AlgorithmSpec):
    """FedAvg on sum_i p_i F_i^{q+1} / (q + 1): clients with a high loss count more.

        Delta_i = y_i - x,   h_i = q F_i(x)^{q-1} L |Delta_i|^2 + F_i(x)^q
        x <- x + server_lr sum_i w_i F_i(x)^q Delta_i / sum_i w_i h_i

    L = `smoothness`. In the paper's notation, where Delta w_i = -L Delta_i, numerator and
    denominator are both divided by L. Each client evaluates its loss at x over all its samples and
    sends it. q = 0 is FedAvg; a large q approaches AFL, the worst client's loss. Departures:
    clients are weighed by the participation scheme (the paper samples them with probability p_i and
    weighs them equally); losses below 1e-10 count as 1e-10 (the authors' code adds 1e-10 to each).
    """

    source = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020 (q-FedAvg)"
    fixed_point = "as `fedavg`, of the objective sum_i p_i F_i^{q+1}"
    example = {"q": 1.0, "smoothness": 10.0}
    ranges = {
        "q": FloatRange(low=0.01, high=10.0, log=True),
        "smoothness": FloatRange(low=1.0, high=100.0, log=True),
    }  # FedQ's range

    kind: Literal["qfedavg"] = "qfedavg"
    q: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Fairness: 0 is FedAvg, a larger one makes losses more alike."""
    smoothness: PositiveRate = 10.0
    """Estimate of the Lipschitz constant L of the gradients; the paper takes 1/eta with the step size
    `local.lr` that is best for q = 0.
    """

    def aggregator(self) -> Aggregator:
        return FairStep(self.q, self.smoothness)


def onto_simplex(values: Tensor) -> Tensor:
    """[N] the point of the probability simplex that is nearest to `values` [N] (Duchi et al., ICML
    2008, Figure 1), in double precision.
    """
    # The point is the same for values less a constant; with the largest 0, the 1 is not rounded away.
    values = values.double() - values.max()
    descending = values.sort(descending=True).values
    excess = descending.cumsum(0) - 1
    counts = torch.arange(1, len(values) + 1, device=values.device, dtype=values.dtype)
    inside = (descending - excess / counts > 0).sum()
    return (values - excess[inside - 1] / inside).clamp(min=0.0)


@dataclass(frozen=True)
class WorstMixture(Aggregator):
    """sum_i lambda_i Delta_i / sum_i lambda_i over the cohort, for the deltas [M, D].

    The state `mixture` [N] is lambda; empty before the first round, which finds 1/N.
    """

    assures = Aggregator.assures

    mixture_lr: float

    def start(self, x: Tensor) -> Vectors:
        return {"mixture": x.new_zeros(0)}

    def needs(self) -> frozenset[CohortNeed]:
        return frozenset({"losses"})

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def combine(self, deltas: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        assert cohort.losses is not None
        mixture = aggregator_state["mixture"]
        if not len(mixture):
            mixture = deltas.new_full((cohort.population,), 1 / cohort.population)
        own = mixture[cohort.clients]
        total = own.sum()
        coefficients = own / (total + (total == 0))
        risen = self.mixture_lr * cohort.losses.double()
        mixture = onto_simplex(mixture.double().index_add(0, cohort.clients, risen)).to(mixture)
        return Aggregate(coefficients @ deltas, coefficients, {"mixture": mixture})


class Afl(AlgorithmSpec):
    """FedAvg for the worst mixture of the clients: min over x, max over lambda of sum_i lambda_i F_i(x).

        x <- x + server_lr sum_i lambda_i Delta_i
        lambda <- P(lambda + mixture_lr (F_1(x), ..., F_N(x)))

    P projects onto the probability simplex; both lines use the x and lambda of the round's begin,
    and lambda starts at 1/N. Each client evaluates its loss at x over all its samples and sends it.
    mixture_lr = 0 is FedAvg with equal weights. Departures: clients take several local steps, the
    paper one; of a cohort that is not everyone, the direction is divided by sum_i lambda_i over the
    cohort, and only its entries of lambda rise before the projection; x is the last iterate, not
    the mean of all, and is not projected; the losses are computed over all samples, in place of
    stochastic estimates.
    """

    source = "Mohri et al., Agnostic Federated Learning, ICML 2019 (Stochastic-AFL)"
    fixed_point = "the minimax point, if clients take one step"
    example = {"mixture_lr": 0.01}
    own_weights = True
    ranges = {"mixture_lr": FloatRange(low=0.001, high=1.0, log=True)}  # FedQ's range

    kind: Literal["afl"] = "afl"
    mixture_lr: NonNegative = 0.1
    """Step size of lambda."""

    def aggregator(self) -> Aggregator:
        return WorstMixture(self.mixture_lr)
