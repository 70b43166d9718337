"""`aggregator`: the block that replaces the aggregation of the algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from fedcore.block import Block
from fedcore.core import Aggregator


class AggregatorSpec(Block):
    """An aggregator and its parameters."""

    source: ClassVar[str | None] = None
    """The publication."""
    averages_models: ClassVar[bool] = False
    """True if the direction is the weighted sum of the changes, as sampling scheme S2 requires."""

    if TYPE_CHECKING:
        kind: str = ""

    def build(self) -> Aggregator:
        """The aggregator."""
        raise NotImplementedError


class MeanAggregator(AggregatorSpec):
    """The weighted mean of the clients' changes, sum_i w_i Delta_i, as FedAvg aggregates."""

    averages_models = True

    kind: Literal["mean"] = "mean"

    def build(self) -> Aggregator:
        return Aggregator()
