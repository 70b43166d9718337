"""FedAvg, and FedAvg under a server optimiser: FedAvgM, FedAdagrad, FedAdam and FedYogi."""

from typing import Literal

from fedcore.algorithms.base import AlgorithmSpec, RoundLaw
from fedcore.algorithms.scaffold import ControlVariates
from fedcore.algorithms.server import Adagrad, Adaptive, AdaptiveParameters, Momentum, Yogi
from fedcore.block import Decay, PositiveRate
from fedcore.core import LocalSgd, Rule, ServerOptimiser
from fedcore.ranges import FloatRange


class FedAvg(AlgorithmSpec):
    """Each client takes tau_i SGD steps from x; the server adds the weighted mean of their changes.

        y_{i,k+1} = y_{i,k} - eta g_i(y_{i,k}),   x <- x + sum_i w_i (y_i - x)

    The participation scheme sets the weights. With variance reduction, FedAvg-VR of Wang et al.
    (FedNova, IEEE TSP 2021, Table I), g_i becomes g_i + sum_j p_j d_j - d_i with d_i the mean raw
    gradient of client i's last round.
    """

    source = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS"
        " 2017, Algorithm 1"
    )
    fixed_point = (
        "a surrogate optimum that weights clients by their local steps; with `variance_reduction` the"
        " optimum, at any step size"
    )
    averages_models = True

    kind: Literal["fedavg"] = "fedavg"
    variance_reduction: bool = False
    """Correct each local gradient by the difference between the client's last gradient and the
    mean.
    """

    def rule(self) -> Rule:
        return ControlVariates(mean="share") if self.variance_reduction else LocalSgd()

    def round_law(self, prox_mu: float, *, uniform: bool) -> RoundLaw | None:
        return None if self.variance_reduction else RoundLaw("averaging", prox_mu)


class FedAvgM(AlgorithmSpec):
    """FedAvg whose averaged change d goes through momentum: v <- beta v + d, x <- x + server_lr v.

    V starts at zero.
    """

    source = (
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual"
        " Classification, 2019"
    )
    fixed_point = "as `fedavg`"
    ranges = {"beta": FloatRange(low=0.0, high=0.997)}  # the paper's grid: 0, 0.7, 0.9, 0.97, 0.99, 0.997

    kind: Literal["fedavgm"] = "fedavgm"
    beta: Decay = 0.9
    """Momentum."""
    nesterov: bool = False
    """x <- x + server_lr (d + beta v) instead."""

    def server(self, lr: float) -> ServerOptimiser:
        return Momentum(lr, self.beta, self.nesterov)


_SOURCE = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2"
_SERVER_LR = {"server_lr": FloatRange(low=0.001, high=1.0, log=True)}
"""FedQ's range; the paper has a grid for each of its tasks."""


class FedAdagrad(AdaptiveParameters, AlgorithmSpec):
    """FedAvg's averaged change d through m <- beta1 m + (1 - beta1) d, v <- v + d^2,
    x <- x + server_lr m / (sqrt(v) + tau).
    """

    source = _SOURCE
    fixed_point = "as `fedavg`"
    ranges = _SERVER_LR

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
    fixed_point = "as `fedavg`"
    example = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "v0": 1e-6}
    ranges = _SERVER_LR

    kind: Literal["fedadam"] = "fedadam"
    server_lr: PositiveRate = 0.1
    """The server's step size; short for `server: {lr: ...}`."""

    def server(self, lr: float) -> ServerOptimiser:
        return Adaptive(lr, **self.moments())


class FedYogi(AdaptiveParameters, AlgorithmSpec):
    """FedAvg's averaged change d through Yogi: v <- v - (1 - beta2) d^2 sign(v - d^2)."""

    source = _SOURCE
    fixed_point = "as `fedavg`"
    ranges = _SERVER_LR

    kind: Literal["fedyogi"] = "fedyogi"
    server_lr: PositiveRate = 0.1
    """The server's step size; short for `server: {lr: ...}`."""

    def server(self, lr: float) -> ServerOptimiser:
        return Yogi(lr, **self.moments())
