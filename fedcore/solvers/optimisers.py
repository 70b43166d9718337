"""Local optimisers: a new one needs a place in OPTIMISERS.

Their state is new in every round: clients keep no moments between rounds, and none are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.block import Block, Decay, NonNegative, PositiveRate
from fedcore.core import Solver, Vectors
from fedcore.families import Family

if TYPE_CHECKING:
    from torch import Tensor


class LocalOptimiser(Block):
    """A local optimiser and its parameters; by default gradient descent."""

    source: ClassVar[str | None] = None
    """The publication."""
    default_lr: ClassVar[float | None] = None
    """The step size eta where none is given; None: it is required."""

    if TYPE_CHECKING:
        kind: str
    lr: PositiveRate | None = None
    """Step size eta."""

    def build(self) -> Solver:
        """The optimiser."""
        return Solver()


@dataclass(frozen=True)
class MomentumSolver(Solver):
    """v <- momentum v + d; v starts at zero."""

    assures = Solver.assures

    momentum: float = 0.0

    def start(self) -> Mapping[str, float]:
        return {"velocity": 0.0} if self.momentum else {}

    def step(self, direction: Tensor, y: Tensor, state: Vectors, k: int) -> tuple[Tensor, Vectors]:
        if not self.momentum:
            return direction, state
        velocity = self.momentum * state["velocity"] + direction
        return velocity, {"velocity": velocity}

    def momentum_form(self) -> float:
        return self.momentum


class Sgd(LocalOptimiser):
    """Stochastic gradient descent.

    Momentum, weight decay and a proximal term are zero unless given.
    """

    kind_may_be_omitted = True

    kind: Literal["sgd"] = "sgd"
    lr: PositiveRate | None = None
    """Step size eta; required, except with `inverse_time`, which sets it."""
    momentum: Decay = 0.0
    """rho of v <- rho v + g, y <- y - eta v; v starts at zero in every round (FedNova, Table of
    a_i).
    """
    weight_decay: NonNegative = 0.0
    """Adds weight_decay y to each gradient."""
    prox_mu: NonNegative = 0.0
    """Adds prox_mu (y - x) to each gradient: the proximal solver of FedProx and FedNova."""

    def build(self) -> Solver:
        return MomentumSolver(self.weight_decay, self.prox_mu, momentum=self.momentum)


@dataclass(frozen=True)
class AdamSolver(Solver):
    """m <- beta1 m + (1 - beta1) d,  v <- beta2 v + (1 - beta2) d^2, both starting at zero; the
    step is decay y + m' / (sqrt(v') + eps) with m' = m / (1 - beta1^(k+1)),
    v' = v / (1 - beta2^(k+1)).
    """

    assures = Solver.assures

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0

    def start(self) -> Mapping[str, float]:
        return {"m": 0.0, "v": 0.0}

    def step(self, direction: Tensor, y: Tensor, state: Vectors, k: int) -> tuple[Tensor, Vectors]:
        m = self.beta1 * state["m"] + (1 - self.beta1) * direction
        v = self.beta2 * state["v"] + (1 - self.beta2) * direction * direction
        unbiased = m / (1 - self.beta1 ** (k + 1))
        step = unbiased / ((v / (1 - self.beta2 ** (k + 1))).sqrt() + self.eps)
        return (step + self.decay * y if self.decay else step), {"m": m, "v": v}

    def momentum_form(self) -> None:
        return None


class Adam(LocalOptimiser):
    """Adam with bias correction, its moments new in every round.

        m <- beta1 m + (1 - beta1) d,   v <- beta2 v + (1 - beta2) d^2
        y <- y - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)    t = 1, 2, ... in a round

    d is the direction of the algorithm's rule: the gradient, with FedProx's proximal term or a
    correction such as FedLin's. A step is no linear function of the gradients, so ||a_i||_1 does
    not exist: `fednova`, `vrlsgd`, `scaffold` with option 2 and variance reduction are rejected.
    The defaults are those of `torch.optim.Adam`.
    """

    source = "Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, Algorithm 1"
    example = {"lr": 0.001}
    default_lr = 1e-3

    kind: Literal["adam"] = "adam"
    lr: PositiveRate | None = None
    """Step size eta (default: 0.001, except with `inverse_time`, which sets it)."""
    beta1: Decay = 0.9
    """Decay of the first moment."""
    beta2: Decay = 0.999
    """Decay of the second moment."""
    eps: Annotated[float, Field(gt=0, le=1e6)] = 1e-8
    """Added to the square root of the second moment."""
    weight_decay: NonNegative = 0.0
    """Adds weight_decay y to each gradient."""

    def build(self) -> Solver:
        return AdamSolver(self.weight_decay, beta1=self.beta1, beta2=self.beta2, eps=self.eps)


class AdamW(Adam):
    """Adam with decoupled weight decay, which the moments do not see.

        y <- y - eta (weight_decay y + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps))

    Everything else is as in `adam`. The defaults are those of `torch.optim.AdamW`.
    """

    source = "Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, Algorithm 2"

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    weight_decay: NonNegative = 0.01
    """Shrinks y by eta weight_decay in each step."""

    def build(self) -> Solver:
        return AdamSolver(beta1=self.beta1, beta2=self.beta2, eps=self.eps, decay=self.weight_decay)


OPTIMISERS = Family("local_optimisers", LocalOptimiser, (Sgd, Adam, AdamW), default_kind="sgd")
AnyOptimiser = Annotated[LocalOptimiser, OPTIMISERS]
