"""FedAdagrad, FedAdam and FedYogi: FedAvg under an adaptive server optimiser."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec
from fedcore.algorithms.server import Adagrad, Adaptive, AdaptiveParameters, Yogi
from fedcore.block import Decay, PositiveRate
from fedcore.core import ServerOptimiser

_SOURCE = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2"


class FedAdagrad(AdaptiveParameters, AlgorithmSpec):
    """FedAvg's averaged change d through m <- beta1 m + (1 - beta1) d, v <- v + d^2, x <- x +
    server_lr m / (sqrt(v) + tau).
    """

    source = _SOURCE

    kind: Literal["fedadagrad"] = "fedadagrad"
    server_lr: PositiveRate = 0.1
    """The server's step size; short for `server: {lr: ...}`."""
    beta1: Decay = 0.0
    """Decay of the first moment; Adagrad as printed has none."""

    def server(self, lr: float) -> ServerOptimiser:
        return Adagrad(lr, **self.moments())


class FedAdam(AdaptiveParameters, AlgorithmSpec):
    """FedAvg's averaged change d through Adam without bias correction: v <- beta2 v + (1 - beta2)
    d^2.
    """

    source = _SOURCE

    kind: Literal["fedadam"] = "fedadam"
    server_lr: PositiveRate = 0.1
    """The server's step size; short for `server: {lr: ...}`."""

    def server(self, lr: float) -> ServerOptimiser:
        return Adaptive(lr, **self.moments())


class FedYogi(AdaptiveParameters, AlgorithmSpec):
    """FedAvg's averaged change d through Yogi: v <- v - (1 - beta2) d^2 sign(v - d^2)."""

    source = _SOURCE

    kind: Literal["fedyogi"] = "fedyogi"
    server_lr: PositiveRate = 0.1
    """The server's step size; short for `server: {lr: ...}`."""

    def server(self, lr: float) -> ServerOptimiser:
        return Yogi(lr, **self.moments())
