"""`systems`: systems heterogeneity: stragglers, and how much work each client does."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.spec.base import Block, NonNegative
from fedcore.spec.local import BatchSize, Count


class Constant(Block):
    """The same for every client in every round."""

    kind: Literal["constant"]
    value: Count


class PerClient(Block):
    """One number for each client, the same in every round."""

    kind: Literal["per_client"]
    values: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1_000_000)]


class UniformDraw(Block):
    """Drawn anew for each client in each round, uniform on the integers low..high, both included."""

    kind: Literal["uniform"]
    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class NormalDraw(Block):
    """Drawn anew for each client in each round, Gaussian, rounded and clipped to low..high."""

    kind: Literal["normal"]
    mean: Annotated[float, Field(gt=0, le=1e6)]
    std: NonNegative
    low: Count = 1
    high: Count = 1_000_000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class WorkTrace(Block):
    """The number for each client in each round, given: a row per round, an entry per client."""

    kind: Literal["trace"]
    rounds: Annotated[tuple[tuple[Count, ...], ...], Field(min_length=1, max_length=100_000)]


AnyWork = Annotated[Constant | PerClient | UniformDraw | NormalDraw | WorkTrace, Field(discriminator="kind")]


class Stragglers(Block):
    """A fraction of each cohort that cannot finish: each does epochs (or steps) drawn from U{1..E} (FedProx, Section 5.2)."""

    fraction: Annotated[float, Field(ge=0, le=1)]
    """Share of the cohort; the number that finish is round(K (1 - fraction))."""
    policy: Literal["drop", "accept_partial"]
    """`drop` leaves them out of the aggregate (FedAvg); `accept_partial` counts what they did (FedProx)."""


class Systems(Block):
    """Systems heterogeneity; each of `epochs`, `steps` and `batch_size` overrides the same field of `local`."""

    stragglers: Stragglers | None = None
    epochs: AnyWork | None = None
    steps: AnyWork | None = None
    batch_size: AnyWork | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give `epochs` or `steps`, not both")
        return self


__all__ = ["AnyWork", "BatchSize", "Constant", "NormalDraw", "PerClient", "Stragglers", "Systems", "UniformDraw", "WorkTrace"]
