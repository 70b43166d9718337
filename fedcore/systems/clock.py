"""The simulated clock: speed of devices, duration of a round, and the deadline.

Blocks `systems.devices` and `systems.deadline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedcore.block import MAX_CLIENTS, Block, NonNegative, check_bounds
from fedcore.errors import SpecificationError
from fedcore.families import Family
from fedcore.lazy import np, random
from fedcore.systems.device_traces import DeviceTrace, TraceFile
from fedcore.systems.work import Work

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]
    Mask = NDArray[np.bool_]

Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
TOLERANCE = 1e-9
"""Share of a deadline by which a client may be late: sums of decimal times are off by rounding, as
0.1 s * 3 is more than 0.3 s.
"""


class DeviceRate(Block):
    """A figure of each client's device."""

    if TYPE_CHECKING:
        kind: str

    def figures(self, purpose: str, clients: Ids, seed: int) -> Floats:
        """[M] the figures of `clients` [M]."""
        raise NotImplementedError

    def check(self, clients: int, pointer: str) -> None:
        """Raise SpecificationError if the block does not fit N = `clients`."""


class ConstantRate(DeviceRate):
    """One rate for every client."""

    example = {"value": 0.05}

    kind: Literal["constant"] = "constant"
    value: Rate
    """The value."""

    def figures(self, purpose: str, clients: Ids, seed: int) -> Floats:
        return np.full(len(clients), self.value)


class PerClientRate(DeviceRate):
    """One value per client."""

    example = {"values": [10.0, 5.0]}

    kind: Literal["per_client"] = "per_client"
    values: Annotated[tuple[Rate, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CLIENTS)]
    """Values by client id."""

    def figures(self, purpose: str, clients: Ids, seed: int) -> Floats:
        return np.array([self.values[client] for client in clients], np.float64)

    def check(self, clients: int, pointer: str) -> None:
        if len(self.values) != clients:
            raise SpecificationError(
                f"{pointer}/values",
                f"must have one value for each of the {clients} clients, not {len(self.values)}",
            )


class _DrawnRate(DeviceRate):
    def draw(self, rng: Generator) -> float:
        """Draw the figure of one client."""
        raise NotImplementedError

    def figures(self, purpose: str, clients: Ids, seed: int) -> Floats:
        return np.array([_drawn(self, purpose, seed, int(client)) for client in clients], np.float64)


class UniformRate(_DrawnRate):
    """Drawn once per client, uniformly between low and high."""

    example = {"low": 1000000.0, "high": 10000000.0}

    kind: Literal["uniform"] = "uniform"
    low: Rate
    """Lower bound."""
    high: Rate
    """Upper bound."""

    _ordered = model_validator(mode="after")(check_bounds)

    def draw(self, rng: Generator) -> float:
        return float(rng.uniform(self.low, self.high))


class LogNormalRate(_DrawnRate):
    """Drawn once per client as median exp(sigma z) with standard normal z: a few clients are many
    times slower than most.
    """

    example = {"median": 20.0, "sigma": 1.0}

    kind: Literal["log_normal"] = "log_normal"
    median: Rate
    """Median value."""
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    """Standard deviation of the logarithm."""

    def draw(self, rng: Generator) -> float:
        return float(self.median * np.exp(self.sigma * rng.standard_normal()))


# A client has the same device in every round: making its generator costs more than remembering the
# figure.
@lru_cache(maxsize=100_000)
def _drawn(rate: _DrawnRate, purpose: str, seed: int, client: int) -> float:
    return rate.draw(random.generator(seed, f"device {purpose}", client=client))


RATES = Family("device_rates", DeviceRate, (ConstantRate, PerClientRate, UniformRate, LogNormalRate))

AnyRate = Annotated[DeviceRate, RATES]


_TRACED = ("steps_per_second", "download_bytes_per_second", "upload_bytes_per_second")
"""The rates that a trace gives."""


class Devices(Block):
    """Speed and network of each client's device, constant over rounds.

    Random draws depend only on the seed and the client id.

    A round takes client i, with tau_i local steps,

        2 latency_i + bytes down / download_i + tau_i / steps_per_second_i + bytes up / upload_i

    simulated seconds; omitted fields take no time. If a round begins with an exchange of gradients
    (FedLin, FedSVRG), their bytes and both latencies are added. Results then include
    `simulated_seconds`, the sum over the rounds so far.
    """

    steps_per_second: AnyRate | None = None
    """Local steps per second, with one gradient each; one with g gradients takes g times as long."""
    download_bytes_per_second: AnyRate | None = None
    """Bytes per second from the server to the client."""
    upload_bytes_per_second: AnyRate | None = None
    """Bytes per second from the client to the server."""
    latency_seconds: AnyRate | None = None
    """Seconds before the first byte, in each direction."""
    trace: TraceFile | None = None
    """Measured devices, in place of `steps_per_second`, `download_bytes_per_second` and
    `upload_bytes_per_second` (default: none).
    """

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not any(getattr(self, field) for field in type(self).model_fields):
            raise ValueError(f"give at least one of {', '.join(type(self).model_fields)}")
        if self.trace is not None and (twice := [field for field in _TRACED if getattr(self, field)]):
            raise ValueError(f"`trace` gives {twice[0]} of every device: omit one of them")
        return self

    def check(self, clients: int) -> None:
        """Raise SpecificationError if a rate does not fit N = `clients`."""
        for field in (*_TRACED, "latency_seconds"):
            rate = getattr(self, field)
            if rate is not None:
                rate.check(clients, f"/systems/devices/{field}")


class Deadline(Block):
    """Time limit of a round. A round ends earlier once all selected clients have responded."""

    seconds: Annotated[NonNegative, Field(gt=0)]
    """Simulated seconds from the start of a round."""
    policy: Literal["drop", "accept_partial"]
    """`drop` discards late clients. With `accept_partial`, clients stop after the last local step
    that meets the deadline; clients that cannot complete a single step are discarded.
    """


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """How fast the M clients of a cohort are in one round."""

    sending: Floats
    """[M] seconds on the way in both directions."""
    speed: Floats
    """[M] local steps a second; infinite where they take no time."""

    def seconds(self, steps: Ids) -> Floats:
        """[M] until the server has heard from each, after `steps` [M]."""
        return self.sending + steps / self.speed


class TimedRound(NamedTuple):
    """Outcome of a round on the simulated clock."""

    work: list[Work]
    """M: what each client does until the deadline."""
    arrives: Mask
    """[M] whether it reaches the server."""
    seconds: float
    """Simulated length of the round."""


def device_speed(
    devices: Devices,
    clients: Ids,
    bytes_down: Ids,
    bytes_up: int,
    messages: Ids | int,
    seed: int,
    trace: DeviceTrace | None = None,
) -> DeviceSpeed:
    """Speed of `clients` [M] that receive `bytes_down` [M] and send `bytes_up` each, in `messages` [M]
    messages in both directions; `trace` has the content of the trace that `devices` names.
    """
    latency, download, upload, speed = (
        np.full(len(clients), absent)
        if getattr(devices, field) is None
        else getattr(devices, field).figures(field, clients, seed)
        for field, absent in (
            ("latency_seconds", 0.0),
            ("download_bytes_per_second", np.inf),
            ("upload_bytes_per_second", np.inf),
            ("steps_per_second", np.inf),
        )
    )
    if trace is not None:
        rows = trace.rows(clients, seed)
        speed = trace.steps_per_second[rows]
        download = upload = trace.bytes_per_second[rows]
    return DeviceSpeed(messages * latency + bytes_down / download + bytes_up / upload, speed)


def apply_deadline(
    deadline: Deadline | None, speed: DeviceSpeed, work: Sequence[Work], arrives: Mask
) -> TimedRound:
    """Hold the work [M] of those who would arrive [M] to the deadline.

    The round lasts until all who arrive have sent their update; if a selected client is missing, or
    none was selected, until the deadline. Without a deadline the server does not wait for missing
    clients, and a round in which none arrives takes no time.
    """
    if deadline is not None:
        work, arrives = _held(deadline, speed, work, arrives)
    seconds = speed.seconds(np.array([item.steps for item in work], np.int64))[arrives]
    if deadline is not None and (not len(seconds) or not arrives.all()):
        return TimedRound(list(work), arrives, deadline.seconds)
    longest = float(seconds.max(initial=0.0))
    return TimedRound(list(work), arrives, longest if deadline is None else min(longest, deadline.seconds))


def _held(
    deadline: Deadline, speed: DeviceSpeed, work: Sequence[Work], arrives: Mask
) -> tuple[list[Work], Mask]:
    steps = np.array([item.steps for item in work], np.int64)
    fitting = _fitting(deadline, speed, steps)
    if deadline.policy == "drop":
        return list(work), arrives & (fitting == steps)
    cut = [replace(item, steps=max(1, int(most))) for item, most in zip(work, fitting, strict=True)]
    return cut, arrives & (fitting > 0)


def _fitting(deadline: Deadline, speed: DeviceSpeed, steps: Ids) -> Ids:
    """[M] the most steps, of those planned, that let each client be on time."""
    left = deadline.seconds * (1 + TOLERANCE) - speed.sending
    most = np.multiply(left, speed.speed, out=np.full(len(left), np.inf), where=np.isfinite(speed.speed))
    return np.where(left < 0, 0, np.minimum(np.floor(most), steps)).astype(np.int64)
