"""`systems.devices` and `systems.deadline`: how fast each client computes and sends, and how long the server waits."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.spec.base import MAX_CLIENTS, Block, NonNegative

Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class ConstantRate(Block):
    """The same for every client."""

    kind: Literal["constant"]
    value: Rate
    """The number."""


class PerClientRate(Block):
    """One number for each client."""

    kind: Literal["per_client"]
    values: Annotated[tuple[Rate, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CLIENTS)]
    """The number of each client, by client id."""


class UniformRate(Block):
    """Drawn once for each client, uniform between low and high."""

    kind: Literal["uniform"]
    low: Rate
    """The least that is drawn."""
    high: Rate
    """The most that is drawn."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) must not exceed high ({self.high:g})")
        return self


class LogNormalRate(Block):
    """Drawn once for each client, median exp(sigma z) with z standard Gaussian: few clients are many times slower than most."""

    kind: Literal["log_normal"]
    median: Rate
    """What half of the clients exceed."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """Deviation of the logarithm."""


AnyRate = Annotated[ConstantRate | PerClientRate | UniformRate | LogNormalRate, Field(discriminator="kind")]


class Devices(Block):
    """What a client's device can do, the same in every round; a client's draws depend on the seed and its id alone.

    A round takes client i, with tau_i local steps,

        latency_i + bytes down / download_i + tau_i / steps_per_second_i + latency_i + bytes up / upload_i

    simulated seconds; what is absent takes no time. Where a round begins with an exchange of gradients (FedLin, FedSVRG) their
    bytes and both latencies come on top. Every row then carries `simulated_seconds`, the sum over the rounds so far.
    """

    steps_per_second: AnyRate | None = None
    """Local steps a second."""
    download_bytes_per_second: AnyRate | None = None
    """Bytes a second from the server."""
    upload_bytes_per_second: AnyRate | None = None
    """Bytes a second to the server."""
    latency_seconds: AnyRate | None = None
    """Seconds that pass before the first byte, in each direction."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not any(getattr(self, field) for field in type(self).model_fields):
            raise ValueError(f"give at least one of {', '.join(type(self).model_fields)}")
        return self


class Deadline(Block):
    """How long the server waits in each round; it ends a round sooner when it has heard from every client it drew."""

    seconds: Annotated[NonNegative, Field(gt=0)]
    """Simulated seconds from the start of a round."""
    policy: Literal["drop", "accept_partial"]
    """`drop` leaves out clients that would be late; `accept_partial` has them stop after the last local step that lets
    them be on time, and leaves out those that cannot take a single one."""
