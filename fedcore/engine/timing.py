"""How long clients take on the simulated clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedcore.systems.clock import DeviceSpeed, device_speed
from fedcore.systems.participation.base import Timing
from fedcore.systems.work import plan_work

if TYPE_CHECKING:
    from fedcore.engine.assignment import Ids
    from fedcore.engine.compressed_links import Traffic
    from fedcore.engine.server import RunContext


def estimate_timing(context: RunContext, traffic: Traffic, round: int, clients: Ids) -> Timing:
    """Estimate of `clients` [m] that receive the whole model and are no stragglers."""
    spec = context.spec
    systems = spec.systems.model_copy(update={"stragglers": None})
    work, _ = plan_work(spec.local, systems, context.problem.sizes, clients, context.seed, round)
    dense, none = np.full(len(clients), traffic.dense()), np.zeros(len(clients), np.int64)
    download, upload = (
        speed_of(context, clients, down, up, 1) for down, up in ((dense, 0), (none, traffic.up(1)))
    )
    steps = np.array([item.steps for item in work], np.int64)
    return Timing(download.sending, steps / download.speed, upload.sending)


def speed_of(
    context: RunContext, clients: Ids, bytes_down: Ids, bytes_up: int, messages: Ids | int
) -> DeviceSpeed:
    """`device_speed` of `clients` [M] on the simulated clock of the run."""
    devices = context.spec.systems.devices
    assert devices is not None
    return device_speed(devices, clients, bytes_down, bytes_up, messages, context.seed, context.device_trace)
