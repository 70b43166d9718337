"""FedAvgM: FedAvg under server momentum."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.server import Momentum
from fedcore.block import Decay
from fedcore.core import ServerOptimiser


class FedAvgM(AlgorithmSpec):
    """FedAvg whose averaged change d goes through momentum: v <- beta v + d, x <- x + server_lr v.

    V starts at zero.
    """

    source = (
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual"
        " Classification, 2019"
    )

    kind: Literal["fedavgm"] = "fedavgm"
    beta: Decay = 0.9
    """Momentum."""
    nesterov: bool = False
    """x <- x + server_lr (d + beta v) instead."""

    def server(self, lr: float) -> ServerOptimiser:
        return Momentum(lr, self.beta, self.nesterov)
