"""Server optimisers, and `server`: the block that replaces the optimiser of the algorithm.

With d the aggregated direction: plain steps x <- x + lr d; momentum (Hsu et al., 2019, FedAvgM);
and the adaptive methods of Reddi et al. (2021), Algorithm 2, without bias correction:

    m <- beta1 m + (1 - beta1) d
    v <- v + d^2                              (Adagrad)
    v <- beta2 v + (1 - beta2) d^2            (Adam)
    v <- v - (1 - beta2) d^2 sign(v - d^2)    (Yogi)
    x <- x + lr m / (sqrt(v) + tau)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedcore.block import Block, Decay, NonNegative, PositiveRate
from fedcore.core import ServerOptimiser, Vectors
from fedcore.families import Family

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Momentum(ServerOptimiser):
    """v <- beta v + d, x <- x + lr v.

    With Nesterov x <- x + lr (d + beta v). v starts at zero; no dampening.
    """

    beta: float = 0.9
    nesterov: bool = False

    def start(self) -> Mapping[str, float]:
        return {"velocity": 0.0}

    def step(self, direction: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        velocity = self.beta * state["velocity"] + direction
        move = direction + self.beta * velocity if self.nesterov else velocity
        return self.lr * move, {"velocity": velocity}


@dataclass(frozen=True)
class Adaptive(ServerOptimiser):
    """Adagrad, Adam and Yogi, except for the recursion of the second moment."""

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    v0: float = 1e-6

    def start(self) -> Mapping[str, float]:
        return {"m": 0.0, "v": self.v0}

    def step(self, direction: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        m = self.beta1 * state["m"] + (1 - self.beta1) * direction
        v = self.second_moment(state["v"], direction * direction)
        return self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v [D], given d^2 [D]; by default Adam's."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """v <- v + d^2."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class Yogi(Adaptive):
    """v <- v - (1 - beta2) d^2 sign(v - d^2), with sign(0) = 0."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()


class ServerSpec(Block):
    """A server optimiser and its parameters."""

    if TYPE_CHECKING:
        lr: float

    def build(self) -> ServerOptimiser | None:
        """The optimiser; None stands for that of the algorithm."""
        raise NotImplementedError


class AdaptiveParameters(ServerSpec):
    """The parameters of an adaptive server optimiser."""

    beta1: Decay = 0.9
    """Decay of the first moment."""
    beta2: Decay = 0.99
    """Decay of the second moment (Adagrad has none)."""
    tau: Annotated[float, Field(gt=0, le=1e6)] = 1e-3
    """Added to sqrt(v): the degree of adaptivity."""
    v0: NonNegative | None = None
    """Initial value of v (default: tau^2)."""

    def moments(self) -> dict[str, float]:
        """The parameters by the names of `Adaptive`."""
        v0 = self.tau**2 if self.v0 is None else self.v0
        return {"beta1": self.beta1, "beta2": self.beta2, "tau": self.tau, "v0": v0}


class OwnServer(ServerSpec):
    """The algorithm's own optimiser with another step size."""

    example = {"lr": 0.5}

    lr: PositiveRate
    """Step size that replaces the algorithm's own."""

    def build(self) -> ServerOptimiser | None:
        """None: the optimiser of the algorithm, with this step size."""
        return None


class SgdServer(ServerSpec):
    """x <- x + lr d."""

    example = {"lr": 0.7}

    kind: Literal["sgd"] = "sgd"
    lr: PositiveRate = 1.0
    """The step size."""

    def build(self) -> ServerOptimiser:
        return ServerOptimiser(self.lr)


class MomentumServer(ServerSpec):
    """Server momentum, as in FedAvgM."""

    example = {"nesterov": True}

    kind: Literal["momentum"] = "momentum"
    lr: PositiveRate = 1.0
    """The step size."""
    beta: Decay = 0.9
    """Decay of the velocity."""
    nesterov: bool = False
    """Look ahead: x <- x + lr (d + beta v)."""

    def build(self) -> ServerOptimiser:
        return Momentum(self.lr, self.beta, self.nesterov)


class AdagradServer(AdaptiveParameters):
    """Server Adagrad, as in FedAdagrad."""

    kind: Literal["adagrad"] = "adagrad"
    lr: PositiveRate = 0.1
    """The step size."""
    beta1: Decay = 0.0
    """Decay of the first moment; Adagrad as printed has none."""

    def build(self) -> ServerOptimiser:
        return Adagrad(self.lr, **self.moments())


class AdamServer(AdaptiveParameters):
    """Server Adam, as in FedAdam."""

    kind: Literal["adam"] = "adam"
    lr: PositiveRate = 0.1
    """The step size."""

    def build(self) -> ServerOptimiser:
        return Adaptive(self.lr, **self.moments())


class YogiServer(AdaptiveParameters):
    """Server Yogi, as in FedYogi."""

    example = {"lr": 0.01}

    kind: Literal["yogi"] = "yogi"
    lr: PositiveRate = 0.1
    """The step size."""

    def build(self) -> ServerOptimiser:
        return Yogi(self.lr, **self.moments())


SERVERS = Family(
    "server_optimisers",
    ServerSpec,
    (OwnServer, SgdServer, MomentumServer, AdagradServer, AdamServer, YogiServer),
    default_kind="own",
)
AnyServer = Annotated[ServerSpec, SERVERS]
