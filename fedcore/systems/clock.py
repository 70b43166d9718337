"""The simulated clock: how long a round takes, and who is on time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.data.plan import Work
from fedcore.random import generator
from fedcore.spec.systems import (
    AnyRate,
    ConstantRate,
    Deadline,
    Devices,
    LogNormalRate,
    PerClientRate,
    UniformRate,
)

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
TOLERANCE = 1e-9
"""Share of a deadline by which a client may be late: sums of decimal times are off by rounding, as
0.1 s * 3 is more than 0.3 s.
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
    devices: Devices, clients: Ids, bytes_down: Ids, bytes_up: int, messages: Ids | int, seed: int
) -> DeviceSpeed:
    """The pace of `clients` [M] that receive `bytes_down` [M] and send `bytes_up` each, in so many
    `messages` [M] both ways.
    """
    latency, download, upload, speed = (
        _rates(getattr(devices, field), field, clients, seed, absent)
        for field, absent in (
            ("latency_seconds", 0.0),
            ("download_bytes_per_second", np.inf),
            ("upload_bytes_per_second", np.inf),
            ("steps_per_second", np.inf),
        )
    )
    return DeviceSpeed(messages * latency + bytes_down / download + bytes_up / upload, speed)


def apply_deadline(
    deadline: Deadline | None, pace: DeviceSpeed, work: Sequence[Work], arrives: Mask
) -> TimedRound:
    """Hold the work [M] of those who would arrive [M] to the deadline.

    The round lasts until the server has heard from all who arrive; where somebody it drew is
    missing, or it drew nobody, until the deadline. Without a deadline nobody is waited for in vain,
    and a round in which nobody arrives takes no time.
    """
    if deadline is not None:
        work, arrives = _held(deadline, pace, work, arrives)
    seconds = pace.seconds(np.array([item.steps for item in work], np.int64))[arrives]
    if deadline is not None and (not len(seconds) or not arrives.all()):
        return TimedRound(list(work), arrives, deadline.seconds)
    longest = float(seconds.max(initial=0.0))
    return TimedRound(list(work), arrives, longest if deadline is None else min(longest, deadline.seconds))


def _held(
    deadline: Deadline, pace: DeviceSpeed, work: Sequence[Work], arrives: Mask
) -> tuple[list[Work], Mask]:
    steps = np.array([item.steps for item in work], np.int64)
    fitting = _fitting(deadline, pace, steps)
    if deadline.policy == "drop":
        return list(work), arrives & (fitting == steps)
    cut = [replace(item, steps=max(1, int(most))) for item, most in zip(work, fitting, strict=True)]
    return cut, arrives & (fitting > 0)


def _fitting(deadline: Deadline, pace: DeviceSpeed, steps: Ids) -> Ids:
    """[M] the most steps, of those planned, that let each client be on time."""
    left = deadline.seconds * (1 + TOLERANCE) - pace.sending
    most = np.multiply(left, pace.speed, out=np.full(len(left), np.inf), where=np.isfinite(pace.speed))
    return np.where(left < 0, 0, np.minimum(np.floor(most), steps)).astype(np.int64)


def _rates(rate: AnyRate | None, purpose: str, clients: Ids, seed: int, absent: float) -> Floats:
    """[M] the figures of `clients` [M]."""
    match rate:
        case None:
            return np.full(len(clients), absent)
        case ConstantRate(value=value):
            return np.full(len(clients), value)
        case PerClientRate(values=values):
            return np.array([values[client] for client in clients], np.float64)
        case _:
            return np.array([_drawn(rate, purpose, seed, int(client)) for client in clients], np.float64)


# A client has the same device in every round: making its generator costs more than remembering the
# figure.
@lru_cache(maxsize=100_000)
def _drawn(rate: UniformRate | LogNormalRate, purpose: str, seed: int, client: int) -> float:
    lot = generator(seed, f"device {purpose}", client=client)
    if isinstance(rate, UniformRate):
        return float(lot.uniform(rate.low, rate.high))
    return float(rate.median * np.exp(rate.sigma * lot.standard_normal()))
