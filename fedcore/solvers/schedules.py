"""Schedules of the local step size: a new one needs a place in SCHEDULES."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedcore.assurance import Assurance, Assurances
from fedcore.block import MAX_ROUNDS, Block, Fraction, ceil_share
from fedcore.families import Family
from fedcore.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class StepSizes:
    """eta_k of the local steps k = 0, 1, ... of one round; by default constant."""

    first: float
    """eta_0."""

    def __getitem__(self, k: int) -> float:
        return self.first

    def first_of(self, steps: int) -> NDArray[np.float64]:
        """eta_k [steps] for k = 0 ... steps - 1."""
        if type(self) is StepSizes:
            return np.full(steps, self.first)
        return np.array([self[k] for k in range(steps)])


@dataclass(frozen=True)
class GeometricSizes(StepSizes):
    """eta_k = first decay^k."""

    decay: float

    def __getitem__(self, k: int) -> float:
        return self.first if self.decay == 1.0 else self.first * self.decay**k


@dataclass(frozen=True)
class HarmonicSizes(StepSizes):
    """eta_k = first offset / (offset + k)."""

    offset: float

    def __getitem__(self, k: int) -> float:
        return self.first * self.offset / (self.offset + k)


class LrSchedule(Block):
    """A schedule of the local step size; by default constant."""

    source: ClassVar[str | None] = None
    """The publication."""
    sets_lr: ClassVar[bool] = False
    """True if the schedule sets the step size itself, so that `lr` is omitted."""
    assures: ClassVar[Assurances] = frozenset({Assurance.OWN_DATA, Assurance.NOISY_GRADIENTS})
    """Statements about privacy; a class that overrides a method declares its own. A schedule that reads
    `clock` depends on how much others train, so it does not assure OWN_DATA.
    """

    if TYPE_CHECKING:
        kind: str

    def sizes(self, lr: float, round: int, rounds: int, clock: int) -> StepSizes:
        """The step sizes of round `round`, counted from 1, of `rounds`.

        `lr` is the step size eta, NaN if the schedule sets it; `clock` counts the local steps of
        all rounds before it, each round as long as its longest client.
        """
        return StepSizes(lr)

    def conflict(self, before: int, after: int, done: int) -> str | None:
        """Reason why one of the first `done` rounds differs between runs of `before` and `after`
        rounds; None if none does.
        """
        for round in range(1, done + 1):
            if self.sizes(1.0, round, before, 0) != self.sizes(1.0, round, after, 0):
                return f"its step size in round {round} depends on the number of rounds (local.lr_schedule)"
        return None


class ConstantLr(LrSchedule):
    """Constant step size."""

    kind: Literal["constant"] = "constant"


class StepLr(LrSchedule):
    """Multiplied by `factor` at each of the given fractions of all rounds, or after each `every`
    rounds.
    """

    example = {"at": [0.5, 0.75], "factor": 0.1}
    assures = LrSchedule.assures

    kind: Literal["step"] = "step"
    at: (
        Annotated[
            tuple[Annotated[float, Field(ge=0, le=1)], ...],
            Field(fail_fast=True, min_length=1, max_length=100),
        ]
        | None
    ) = None
    """Fractions of the number of rounds T; the factor applies from round ceil(fraction T) + 1."""
    every: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | None = None
    """Instead of `at`: eta factor^floor((t - 1) / every) in round t, however many rounds there are
    (PyTorch's `StepLR`).
    """
    factor: Fraction
    """Factor of each decrease."""

    @model_validator(mode="after")
    def _has_one_unit(self) -> Self:
        if (self.at is None) == (self.every is None):
            raise ValueError("give either `at`, fractions of all rounds, or `every`, a number of rounds")
        return self

    def last_rounds(self, rounds: int) -> Sequence[int]:
        """The rounds before the last after which the step size falls."""
        if self.at is None:
            assert self.every is not None
            return range(self.every, rounds, self.every)
        return [ceil_share(fraction, rounds) for fraction in self.at]

    def sizes(self, lr: float, round: int, rounds: int, clock: int) -> StepSizes:
        if self.every is not None:
            return StepSizes(lr * self.factor ** ((round - 1) // self.every))
        passed = sum(round > last for last in self.last_rounds(rounds))
        return StepSizes(lr * self.factor**passed)

    def conflict(self, before: int, after: int, done: int) -> str | None:
        if self.every is not None:
            return None
        for old, new in zip(self.last_rounds(before), self.last_rounds(after), strict=True):
            if min(old, done) != min(new, done):
                return f"its step size fell after round {old}, not {new} (local.lr_schedule.at)"
        return None


class ExponentialLr(LrSchedule):
    """eta gamma^k at local step k = 0, 1, ... of a round (FedNova, the decayed solver), or eta
    gamma^(t - 1) in round t (McMahan et al., 2017, on CIFAR-10; FedDyn).
    """

    example = {"gamma": 0.9}
    assures = LrSchedule.assures

    kind: Literal["exponential"] = "exponential"
    gamma: Fraction
    """Factor per local step, or per round."""
    counts: Literal["steps", "rounds"] = "steps"
    """Unit of the exponent: local steps, from 0 again in each round, or rounds."""

    def sizes(self, lr: float, round: int, rounds: int, clock: int) -> StepSizes:
        if self.counts == "rounds":
            return StepSizes(lr * self.gamma ** (round - 1))
        return GeometricSizes(lr, self.gamma)


class InverseTimeLr(LrSchedule):
    """eta_t = 2 / (mu (gamma + t)), t counting local steps over all rounds (Li et al.,
    Theorem 2).
    """

    example = {"mu": 1.0, "gamma": 8.0}
    sets_lr = True

    kind: Literal["inverse_time"] = "inverse_time"
    mu: Annotated[float, Field(gt=0, le=1e12)]
    """Strong convexity constant of the objective."""
    gamma: Annotated[float, Field(gt=0, le=1e12)]
    """max(9 kappa, E) in the theorem."""
    counts: Literal["steps", "rounds"] = "steps"
    """Unit of t. In rounds, gamma = 1 and mu = 2 / eta_0 give eta_0 / (1 + t), the decay of their
    experiments. Beside `privacy` of whole clients only rounds: steps count the work of others.
    """

    @property
    def assures(self) -> Assurances:  # type: ignore[override]
        """Without OWN_DATA, if it reads the clock."""
        read = {Assurance.OWN_DATA} if self.counts == "steps" else set()
        return LrSchedule.assures - read

    def sizes(self, lr: float, round: int, rounds: int, clock: int) -> StepSizes:
        if self.counts == "rounds":
            return StepSizes(2 / (self.mu * (self.gamma + round - 1)))
        return HarmonicSizes(2 / (self.mu * (self.gamma + clock)), self.gamma + clock)


class CosineLr(LrSchedule):
    """eta (floor + (1 - floor) (1 + cos(pi (t - 1) / T)) / 2) in round t of T, without restarts."""

    source = "Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017, eq. (5)"
    example = {"floor": 0.01}
    assures = LrSchedule.assures

    kind: Literal["cosine"] = "cosine"
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of eta that is approached at the end, eta_min / eta."""

    def sizes(self, lr: float, round: int, rounds: int, clock: int) -> StepSizes:
        share = (1 + cos(pi * (round - 1) / rounds)) / 2
        return StepSizes(lr * (self.floor + (1 - self.floor) * share))


class LinearWarmupLr(LrSchedule):
    """eta t / W in round t of the first W rounds, and eta from then on."""

    source = "Goyal et al., Accurate, Large Minibatch SGD, 2017, Section 2.2 (gradual warmup)"
    example = {"rounds": 5}
    assures = LrSchedule.assures

    kind: Literal["linear_warmup"] = "linear_warmup"
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
    """W."""

    def sizes(self, lr: float, round: int, rounds: int, clock: int) -> StepSizes:
        return StepSizes(lr * min(1.0, round / self.rounds))


SCHEDULES = Family(
    "lr_schedules",
    LrSchedule,
    (ConstantLr, StepLr, ExponentialLr, InverseTimeLr, CosineLr, LinearWarmupLr),
)
AnyLrSchedule = Annotated[LrSchedule, SCHEDULES]
