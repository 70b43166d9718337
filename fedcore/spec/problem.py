"""`problem`: which data, who holds what, and which model is trained."""

from typing import Self

from pydantic import model_validator

from fedcore.spec.base import Block
from fedcore.spec.dataset import AnyDataset, FederatedDataset, KeyedDataset
from fedcore.spec.exact import ExactProblem
from fedcore.spec.model import AnyModel
from fedcore.spec.partition import AnyPartition, ByKeyPartition


class Problem(Block):
    """The data set, its partition over clients and the model; an exact problem is all three at once."""

    dataset: AnyDataset
    """The data."""
    partition: AnyPartition | None = None
    """Who holds what; for data that come in one piece, and only for those."""
    model: AnyModel | None = None
    """What is trained; an exact problem has none."""

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        federated = isinstance(self.dataset, FederatedDataset)
        if federated and self.partition is not None:
            raise ValueError(f"{self.dataset.kind} comes divided into clients; leave `partition` out")
        if not federated and self.partition is None:
            raise ValueError(f"{self.dataset.kind} comes in one piece; give a `partition` to divide it over clients")
        keyed = isinstance(self.dataset, KeyedDataset)
        if isinstance(self.partition, ByKeyPartition) and not keyed:
            raise ValueError(f"{self.dataset.kind} does not say whose each sample is; by_key needs femnist, shakespeare or sent140")
        exact = isinstance(self.dataset, ExactProblem)
        if exact and self.model is not None:
            raise ValueError(f"{self.dataset.kind} is its own model; leave `model` out")
        if not exact and self.model is None:
            raise ValueError(f"give a `model` to train on {self.dataset.kind}")
        return self
