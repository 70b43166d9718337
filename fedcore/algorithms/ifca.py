"""IFCA: the server keeps several models, and each client trains the one that fits its data best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.block import NonNegative
from fedcore.core import Aggregate, Aggregator, ClientRule, Cohort, Vectors
from fedcore.lazy import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")


@dataclass(frozen=True)
class OneOfSeveral(ClientRule):
    """Local SGD from the model with the lowest loss."""

    models: int = 1
    spread: float = 0.0

    def models_kept(self) -> int:
        return self.models

    def initial_spread(self) -> float:
        return self.spread


@dataclass(frozen=True)
class ClusterAverage(Aggregator):
    """x_j moves by W sum_{i in j} w_i delta_i / W_j, where i in j trained x_j, W = sum_i w_i and
    W_j = sum_{i in j} w_i; with `scaled`, by sum_{i in j} w_i delta_i. A model without clients stays.
    """

    models: int = 1
    scaled: bool = False

    def coefficients(self, cohort: Cohort) -> Tensor:
        if self.scaled:
            return cohort.weights
        members = self._members(cohort)
        trained = members.T @ (members @ cohort.weights)
        return cohort.weights * cohort.weights.sum() / (trained + (trained == 0))

    def weighted_sums(self, cohort: Cohort) -> Tensor:
        return self._members(cohort) * self.coefficients(cohort)

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        return Aggregate(seen.flatten(), self.coefficients(cohort), aggregator_state)

    def _members(self, cohort: Cohort) -> Tensor:
        """[k, M] 1 where the client trained the model."""
        if cohort.models is None:
            return cohort.weights.new_ones((1, len(cohort.weights)))
        numbers = torch.arange(self.models, device=cohort.models.device)
        return (numbers[:, None] == cohort.models).to(cohort.weights)


class Ifca(AlgorithmSpec):
    """Clients form k clusters, each with a model of its own. In every round a client receives all k
    models, trains the one with the lowest loss on its data, and sends that back.

        j(i) = argmin_j F_i(x_j),   y_i <- tau_i SGD steps from x_{j(i)}
        models:    x_j <- x_j + server_lr (mean of y_i - x_j over the clients with j(i) = j)
        gradients: x_j <- x_j + server_lr sum_{i: j(i) = j} w_i (y_i - x_j)

    The loss is over all training samples of the client; of equal ones the first counts. A model that no
    client of the cohort chose stays as it is. `gradients` with `local.steps: 1` is the paper's option I,
    where a small cluster moves less; `models` is its option II. clusters = 1 is FedAvg.

    A client's personal model is the one with the lowest loss on its training samples at the time; the
    choice follows from models and data, so nothing is remembered. Measures of the server's model
    (`train_loss`, `test_accuracy`) see the first of the k models alone, which serves its cluster only:
    use `personal_accuracy`. Down travel k models, up one and its number; a round computes k losses for
    each client beside its local steps.

    Each model starts at a draw of its own. Models that start from files, and exact problems, all start
    alike: set them apart by `spread`, or all clients choose the first for ever. After a poor start,
    several clusters share a model. The paper then restarts and keeps the run with the lowest training
    loss: give several `seeds` and compare their `personal_accuracy`. Departure: layers shared by all
    clusters (weight sharing) are left out. The cohort is averaged uniformly unless
    `participation.weighting` says otherwise.
    """

    source = (
        "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1"
        " (IFCA)"
    )
    fixed_point = "for each cluster that of `fedavg` on its clients"
    weighting = "uniform"
    example = {"clusters": 2, "spread": 0.1}

    kind: Literal["ifca"] = "ifca"
    clusters: Annotated[int, Field(ge=1, le=100)] = 2
    """k, the number of models."""
    averaging: Literal["models", "gradients"] = "models"
    """`models`: the mean over a cluster's clients; `gradients`: weights of the whole cohort."""
    spread: NonNegative = 0.0
    """Standard deviation of Gaussian noise added to each of several models at the start."""

    def rule(self) -> ClientRule:
        return OneOfSeveral(self.clusters, self.spread)

    def aggregator(self) -> Aggregator:
        return ClusterAverage(self.clusters, scaled=self.averaging == "gradients")
