"""`problem`: data set, partition and model."""

from typing import Self

from pydantic import model_validator

from fedcore.block import Block, kind_of
from fedcore.data.datasets import AnyDataset, Uploaded, UploadedContent, comes_divided
from fedcore.data.exact import ExactProblem
from fedcore.data.partition import PARTITIONS, AnyPartition
from fedcore.models import AnyModel


class Problem(Block):
    """The data set, its partition over clients and the model.

    An exact problem is all three at once.
    """

    dataset: AnyDataset
    """The data set."""
    partition: AnyPartition | None = None
    """Partition over clients; required for data sets that are not divided into clients, and only
    for these.
    """
    model: AnyModel | None = None
    """The model; exact problems have none."""

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        divided = comes_divided(self.dataset)
        if divided and self.partition is not None:
            raise ValueError(f"{self.dataset.kind} is already divided into clients; omit `partition`")
        if not divided and self.partition is None:
            raise ValueError(f"{self.dataset.kind} is not divided into clients; give a `partition`")
        exact = isinstance(self.dataset, ExactProblem)
        if exact and self.model is not None:
            raise ValueError(f"{self.dataset.kind} has no separate model; omit `model`")
        if not exact and self.model is None:
            raise ValueError(f"{self.dataset.kind} requires a `model`")
        if isinstance(self.dataset, Uploaded):
            _check_uploaded(self.dataset.known, self.model, self.partition)
        return self


def _check_uploaded(content: UploadedContent, model: AnyModel | None, partition: AnyPartition | None) -> None:
    """Reject classifiers and partitions by class for real labels."""
    if content.classes:
        return
    if model is not None and not model.squared_error:
        raise ValueError(
            "the uploaded labels are real numbers: use the model `linear`, or upload integers 0..C-1 to"
            " classify"
        )
    if partition is not None and not partition.takes_real_labels:
        fitting = " or ".join(f"`{kind_of(member)}`" for member in PARTITIONS if member.takes_real_labels)
        raise ValueError(
            f"{partition.kind} divides classes, but the uploaded labels are real numbers: use {fitting}"
        )
