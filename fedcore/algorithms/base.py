"""Base class of the specifications of algorithms."""

from typing import ClassVar, Literal

from fedcore.block import Block, PositiveRate
from fedcore.core import Aggregator, ClientRule, ServerOptimiser


class AlgorithmSpec(Block):
    """An algorithm and its parameters; parts that are not overridden are those of FedAvg."""

    source: ClassVar[str]
    """The publication, with the algorithm or equation number."""
    weighting: ClassVar[Literal["uniform"] | None] = None
    """Default weighting of the cohort; None: that of the participation scheme."""
    averages_exactly: ClassVar[bool] = False
    """The server's model must be the average of what its distinct clients hold, or the fixed point
    is no optimum.

    Each client of a cohort counts once however often it was drawn, and server optimisers, weights
    that do not sum to 1 and a downlink that loses part of a message are rejected.
    """
    own_weights: ClassVar[bool] = False
    """True if the algorithm computes its own weights and ignores those of the scheme."""

    kind: str
    server_lr: PositiveRate = 1.0
    """The server's step size; short for `server: {lr: ...}`."""

    def rule(self) -> ClientRule:
        """The clients' rule."""
        return ClientRule()

    def aggregator(self) -> Aggregator:
        """The server's aggregation."""
        return Aggregator()

    def server(self, lr: float) -> ServerOptimiser:
        """The server's optimiser with step size `lr`."""
        return ServerOptimiser(lr)
