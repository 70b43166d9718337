"""`systems`: systems heterogeneity: stragglers, and how much work each client does.

`systems.availability`: which clients can be reached at all in a round.

`systems.devices` and `systems.deadline`: how fast each client computes and sends, and how long the
server waits.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import MAX_CLIENTS, Block, Fraction, NonNegative
from fedcore.spec.local import BatchSize, Count

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


ClientId = Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
Probability = (
    Fraction | Annotated[tuple[Fraction, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CLIENTS)]
)


class AvailabilityTrace(Block):
    """Lists of available clients for each round, repeated cyclically."""

    example = {"rounds": [[0, 1], [0], []]}

    kind: Literal["trace"]
    rounds: Annotated[
        tuple[Annotated[tuple[ClientId, ...], Field(fail_fast=True)], ...],
        Field(fail_fast=True, min_length=1, max_length=100_000),
    ]
    """A list of client ids per round; with an empty list, no client is available."""


class RandomAvailability(Block):
    """Each client is available with its probability, independently in every round."""

    example = {"probability": 0.8}

    kind: Literal["bernoulli"]
    probability: Probability
    """One probability for all clients, or one per client by client id."""


AnyAvailability = Annotated[AvailabilityTrace | RandomAvailability, Field(discriminator="kind")]


Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class ConstantRate(Block):
    """The same for every client."""

    example = {"value": 0.05}

    kind: Literal["constant"]
    value: Rate
    """The value."""


class PerClientRate(Block):
    """One value per client."""

    example = {"values": [10.0, 5.0]}

    kind: Literal["per_client"]
    values: Annotated[tuple[Rate, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CLIENTS)]
    """Values by client id."""


class UniformRate(Block):
    """Drawn once per client, uniformly between low and high."""

    example = {"low": 1000000.0, "high": 10000000.0}

    kind: Literal["uniform"]
    low: Rate
    """Lower bound."""
    high: Rate
    """Upper bound."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) must not exceed high ({self.high:g})")
        return self


class LogNormalRate(Block):
    """Drawn once per client as median exp(sigma z) with standard normal z: a few clients are many
    times slower than most.
    """

    example = {"median": 20.0, "sigma": 1.0}

    kind: Literal["log_normal"]
    median: Rate
    """Median value."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """Standard deviation of the logarithm."""


AnyRate = Annotated[ConstantRate | PerClientRate | UniformRate | LogNormalRate, Field(discriminator="kind")]


class Devices(Block):
    """Speed and network of each client's device, constant over rounds.

    Random draws depend only on the seed and the client id.

    A round takes client i, with tau_i local steps,

        latency_i + bytes down / download_i + tau_i / steps_per_second_i + latency_i + bytes up /
        upload_i

    simulated seconds; omitted fields take no time. If a round begins with an exchange of gradients
    (FedLin, FedSVRG), their bytes and both latencies are added. Results then include
    `simulated_seconds`, the sum over the rounds so far.
    """

    steps_per_second: AnyRate | None = None
    """Local steps per second."""
    download_bytes_per_second: AnyRate | None = None
    """Bytes per second from the server to the client."""
    upload_bytes_per_second: AnyRate | None = None
    """Bytes per second from the client to the server."""
    latency_seconds: AnyRate | None = None
    """Seconds before the first byte, in each direction."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not any(getattr(self, field) for field in type(self).model_fields):
            raise ValueError(f"give at least one of {', '.join(type(self).model_fields)}")
        return self


class Deadline(Block):
    """Time limit of a round. A round ends earlier once all selected clients have responded."""

    seconds: Annotated[NonNegative, Field(gt=0)]
    """Simulated seconds from the start of a round."""
    policy: Literal["drop", "accept_partial"]
    """`drop` discards late clients. With `accept_partial`, clients stop after the last local step
    that meets the deadline; clients that cannot complete a single step are discarded.
    """


class Constant(Block):
    """The same for every client in every round."""

    example = {"value": 2}

    kind: Literal["constant"]
    value: Count
    """The value."""


class PerClient(Block):
    """One number per client, the same in every round."""

    example = {"values": [50, 30]}

    kind: Literal["per_client"]
    values: Annotated[tuple[Count, ...], Field(fail_fast=True, min_length=1, max_length=1_000_000)]
    """Values by client id."""


class UniformDraw(Block):
    """Drawn for each client in each round, uniformly from the integers low..high, inclusive."""

    example = {"low": 2, "high": 5}

    kind: Literal["uniform"]
    low: Count
    """Lower bound."""
    high: Count
    """Upper bound."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class UniformBatch(Block):
    """Drawn for each client in each round, uniformly from the integers low..high, inclusive."""

    example = {"low": 10, "high": "samples"}

    kind: Literal["uniform"]
    low: Count
    """Lower bound."""
    high: Count | Literal["samples"]
    """Upper bound, limited to the client's samples; `samples` is n_i itself (FedAWARE, Hybrid+)."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high != "samples" and self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class NormalDraw(Block):
    """Drawn for each client in each round from a normal distribution, rounded and clipped to
    low..high.
    """

    example = {"mean": 16.0, "std": 4.0, "low": 4, "high": 32}

    kind: Literal["normal"]
    mean: Annotated[float, Field(gt=0, le=1e6)]
    """Mean before rounding and clipping."""
    std: NonNegative
    """Standard deviation before rounding and clipping."""
    low: Count = 1
    """Lower bound of clipping."""
    high: Count = 1_000_000
    """Upper bound of clipping."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class WorkTrace(Block):
    """Given values, one row per round with one entry per client."""

    example = {"rounds": [[5, 2], [1, 7]]}

    kind: Literal["trace"]
    rounds: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(fail_fast=True)], ...],
        Field(fail_fast=True, min_length=1, max_length=100_000),
    ]
    """Values by round and client id."""


AnyWork = Annotated[Constant | PerClient | UniformDraw | NormalDraw | WorkTrace, Field(discriminator="kind")]
AnyBatch = Annotated[
    Constant | PerClient | UniformBatch | NormalDraw | WorkTrace, Field(discriminator="kind")
]


class Stragglers(Block):
    """Clients that do not finish: each does a number of epochs or steps drawn from U{1..E}
    (FedProx, Section 5.2).
    """

    fraction: Annotated[float, Field(ge=0, le=1)]
    """Fraction of the cohort; round(K (1 - fraction)) clients finish."""
    policy: Literal["drop", "accept_partial"]
    """`drop` excludes stragglers from aggregation (FedAvg); `accept_partial` includes their partial
    work (FedProx).
    """
    unit: Literal["epochs", "steps"] | None = None
    """Unit of the draw: `epochs` out of E, or `steps` out of all steps of E epochs, as in FedProx
    for E = 1 (default: the unit of the local work in `local` or `systems`).
    """


class Systems(Block):
    """Systems heterogeneity.

    Each of `epochs`, `steps` and `batch_size` overrides the same field of `local`.
    """

    stragglers: Stragglers | None = None
    """Clients that do not finish (default: none)."""
    epochs: AnyWork | None = None
    """Passes over a client's data."""
    steps: AnyWork | None = None
    """Local steps of a client."""
    batch_size: AnyBatch | None = None
    """Samples per step of a client."""
    availability: AnyAvailability | None = None
    """Clients available to `participation` in each round; cohorts are smaller if there are not
    enough (default: all). A round without available clients does not change the model.
    """
    devices: Devices | None = None
    """Speed of the clients' devices, for a simulated clock (default: no clock)."""
    deadline: Deadline | None = None
    """Time limit of a round (default: wait for all selected clients)."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give `epochs` or `steps`, not both")
        return self
