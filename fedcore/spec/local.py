"""`local`: the solver each client runs on its own data."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import Block, Decay, Fraction, NonNegative, PositiveRate, ceil_share
from fedcore.systems.work import BatchSize, Count


class Sgd(Block):
    """Stochastic gradient descent.

    Momentum, weight decay and a proximal term are zero unless given.
    """

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


class ConstantLr(Block):
    """Constant step size."""

    kind: Literal["constant"]


class StepLr(Block):
    """Multiplied by `factor` at each of the given fractions of all rounds."""

    example = {"at": [0.5, 0.75], "factor": 0.1}

    kind: Literal["step"]
    at: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(fail_fast=True, min_length=1, max_length=100)
    ]
    """Fractions of the number of rounds T; the factor applies from round ceil(fraction T) + 1."""
    factor: Fraction
    """Factor of each decrease."""

    def last_rounds(self, rounds: int) -> list[int]:
        """ceil(fraction T) for each of the fractions: the rounds after which the step size
        falls.
        """
        return [ceil_share(fraction, rounds) for fraction in self.at]


class ExponentialLr(Block):
    """eta gamma^k at local step k of a round (FedNova, the decayed solver)."""

    example = {"gamma": 0.9}

    kind: Literal["exponential"]
    gamma: Fraction
    """Factor per local step."""


class InverseTimeLr(Block):
    """eta_t = 2 / (mu (gamma + t)), t counting local steps over all rounds (Li et al.,
    Theorem 2).
    """

    example = {"mu": 1.0, "gamma": 8.0}

    kind: Literal["inverse_time"]
    mu: Annotated[float, Field(gt=0, le=1e12)]
    """Strong convexity constant of the objective."""
    gamma: Annotated[float, Field(gt=0, le=1e12)]
    """max(9 kappa, E) in the theorem."""
    counts: Literal["steps", "rounds"] = "steps"
    """Unit of t. In rounds, gamma = 1 and mu = 2 / eta_0 give eta_0 / (1 + t), the decay of their
    experiments.
    """


AnyLrSchedule = Annotated[ConstantLr | StepLr | ExponentialLr | InverseTimeLr, Field(discriminator="kind")]


class LocalSolver(Block):
    """Local training of a client in one round: optimiser, step size and amount of work."""

    optimizer: Sgd = Sgd()
    """The local optimiser."""
    lr: PositiveRate | None = None
    """The step size eta; short for `optimizer.lr`."""
    lr_schedule: AnyLrSchedule = ConstantLr(kind="constant")
    """Schedule of the step size."""
    epochs: Count | None = None
    """Passes over the client's data; the short last batch counts as a step: tau_i = epochs *
    ceil(n_i / batch_size).
    """
    steps: Count | None = None
    """Local steps tau, instead of epochs."""
    batch_size: BatchSize = "full"
    """Samples per step, at most all samples of the client; `full` uses all."""

    @model_validator(mode="after")
    def _one_length_and_rate(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give `epochs` or `steps`, not both")
        if self.lr is not None and self.optimizer.lr is not None:
            raise ValueError("give `lr` or `optimizer.lr`, not both")
        scheduled = isinstance(self.lr_schedule, InverseTimeLr)
        if scheduled and self.rate is not None:
            raise ValueError("inverse_time sets the step size 2 / (mu (gamma + t)); omit `lr`")
        if not scheduled and self.rate is None:
            raise ValueError("give the step size `lr`")
        return self

    @property
    def rate(self) -> float | None:
        """The step size eta, wherever it was given; None when the schedule sets it."""
        return self.lr if self.lr is not None else self.optimizer.lr
