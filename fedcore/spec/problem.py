"""`problem`: which data, who holds what, and which model is trained."""

from typing import Self

from pydantic import model_validator

from fedcore.block import Block
from fedcore.spec.dataset import AnyDataset, Uploaded, UploadedContent, comes_divided
from fedcore.spec.exact import ExactProblem
from fedcore.spec.model import AnyModel
from fedcore.spec.partition import AnyPartition


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
        divided = comes_divided(self.dataset)
        if divided and self.partition is not None:
            raise ValueError(f"{self.dataset.kind} comes divided into clients; leave `partition` out")
        if not divided and self.partition is None:
            raise ValueError(f"{self.dataset.kind} comes in one piece; give a `partition` to divide it over clients")
        exact = isinstance(self.dataset, ExactProblem)
        if exact and self.model is not None:
            raise ValueError(f"{self.dataset.kind} is its own model; leave `model` out")
        if not exact and self.model is None:
            raise ValueError(f"give a `model` to train on {self.dataset.kind}")
        if isinstance(self.dataset, Uploaded):
            _check_uploaded(self.dataset.known, self.model, self.partition)
        return self


def _check_uploaded(content: UploadedContent, model: AnyModel | None, partition: AnyPartition | None) -> None:
    """What is certain by the kind for other data: that labels are classes."""
    if content.classes:
        return
    regresses = model is None or model.kind == "linear" or (model.kind == "import" and model.loss == "squared_error")
    if not regresses:
        raise ValueError("the uploaded labels are real numbers: use the model `linear`, or upload integers 0..C-1 to classify")
    if partition is not None and partition.kind not in ("iid", "shards"):
        raise ValueError(f"{partition.kind} divides classes, and the uploaded labels are real numbers: use `iid` or `shards`")
