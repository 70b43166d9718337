"""`systems`: systems heterogeneity: stragglers, and how much work each client does."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.spec.availability import AnyAvailability
from fedcore.spec.base import Block, NonNegative
from fedcore.spec.devices import Deadline, Devices
from fedcore.spec.local import BatchSize, Count


class Constant(Block):
    """The same for every client in every round."""

    kind: Literal["constant"]
    value: Count
    """The number."""


class PerClient(Block):
    """One number for each client, the same in every round."""

    kind: Literal["per_client"]
    values: Annotated[tuple[Count, ...], Field(fail_fast=True, min_length=1, max_length=1_000_000)]
    """The number of each client, by client id."""


class UniformDraw(Block):
    """Drawn anew for each client in each round, uniform on the integers low..high, both included."""

    kind: Literal["uniform"]
    low: Count
    """The least that is drawn."""
    high: Count
    """The most that is drawn."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class UniformBatch(Block):
    """Drawn anew for each client in each round, uniform on the integers low..high, both included."""

    kind: Literal["uniform"]
    low: Count
    """The least that is drawn."""
    high: Count | Literal["samples"]
    """The most that is drawn, of which a client takes at most all it has; `samples` is n_i itself (FedAWARE, Hybrid+)."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high != "samples" and self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class NormalDraw(Block):
    """Drawn anew for each client in each round, Gaussian, rounded and clipped to low..high."""

    kind: Literal["normal"]
    mean: Annotated[float, Field(gt=0, le=1e6)]
    """Mean before rounding and clipping."""
    std: NonNegative
    """Deviation before rounding and clipping."""
    low: Count = 1
    """What is drawn below becomes this."""
    high: Count = 1_000_000
    """What is drawn above becomes this."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class WorkTrace(Block):
    """The number for each client in each round, given: a row per round, an entry per client."""

    kind: Literal["trace"]
    rounds: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(fail_fast=True)], ...], Field(fail_fast=True, min_length=1, max_length=100_000)
    ]
    """The number of each client, a row for each round."""


AnyWork = Annotated[Constant | PerClient | UniformDraw | NormalDraw | WorkTrace, Field(discriminator="kind")]
AnyBatch = Annotated[Constant | PerClient | UniformBatch | NormalDraw | WorkTrace, Field(discriminator="kind")]


class Stragglers(Block):
    """A fraction of each cohort that cannot finish: each does epochs, or steps, drawn from U{1..E} (FedProx, Section 5.2)."""

    fraction: Annotated[float, Field(ge=0, le=1)]
    """Share of the cohort; the number that finish is round(K (1 - fraction))."""
    policy: Literal["drop", "accept_partial"]
    """`drop` leaves them out of the aggregate (FedAvg); `accept_partial` counts what they did (FedProx)."""
    unit: Literal["epochs", "steps"] | None = None
    """What is drawn: `epochs` of the E given, or `steps` of all that those make, as FedProx does where E is 1; absent, the
    unit in which `local` or `systems` say how long a client trains."""


class Systems(Block):
    """Systems heterogeneity; each of `epochs`, `steps` and `batch_size` overrides the same field of `local`."""

    stragglers: Stragglers | None = None
    """Clients that cannot finish; absent, there are none."""
    epochs: AnyWork | None = None
    """Passes over a client's data."""
    steps: AnyWork | None = None
    """Local steps of a client."""
    batch_size: AnyBatch | None = None
    """Samples per step of a client."""
    availability: AnyAvailability | None = None
    """The clients among whom `participation` draws in each round, fewer where there are not enough; absent, all. A round
    that reaches nobody leaves the model as it is."""
    devices: Devices | None = None
    """How fast the clients' devices are, for the simulated clock; absent, there is none."""
    deadline: Deadline | None = None
    """How long the server waits for them; absent, for all it drew."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give `epochs` or `steps`, not both")
        return self


__all__ = [
    "AnyBatch",
    "AnyWork",
    "BatchSize",
    "Constant",
    "NormalDraw",
    "PerClient",
    "Stragglers",
    "Systems",
    "UniformBatch",
    "UniformDraw",
    "WorkTrace",
]
