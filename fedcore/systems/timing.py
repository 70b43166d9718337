"""How long clients take on the simulated clock. Plans ask, too, so it loads no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedcore.lazy import np
from fedcore.systems.clock import DeviceSpeed, device_speed
from fedcore.systems.participation.base import Timing
from fedcore.systems.work import plan_work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedcore.spec import ExperimentSpec
    from fedcore.systems.availability import AvailabilityData
    from fedcore.systems.device_traces import DeviceTrace
    from fedcore.systems.traffic import Traffic

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrawContext:
    """The constants of a run that its draws depend on."""

    spec: ExperimentSpec
    seed: int
    share: Floats
    """[N] p_i."""
    sizes: Ids
    """[N] n_i."""
    dim: int
    """D."""
    availability: AvailabilityData | None = None
    """`systems.availability`, if it is given."""
    device_trace: DeviceTrace | None = None
    """The devices of `systems.devices.trace`, if it is given."""
    gradients: float = 1.0
    """The work of a local step, in gradients of its mini-batch."""


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """A round on the simulated clock."""

    busy: float
    """Mean number of clients that computed or sent."""
    places: int
    """How many could have: the selected clients, or the `concurrency` of an asynchronous run."""
    staleness: Ids | None = None
    """[M] steps that the server took between the start and the arrival of each client, in an
    asynchronous run.
    """


def estimate_timing(context: DrawContext, traffic: Traffic, round: int, clients: Ids) -> Timing:
    """Estimate of `clients` [m] that receive the whole model and are no stragglers."""
    spec = context.spec
    systems = spec.systems.model_copy(update={"stragglers": None})
    work, _ = plan_work(spec.local, systems, context.sizes, clients, context.seed, round)
    dense, none = np.full(len(clients), traffic.dense()), np.zeros(len(clients), np.int64)
    download, upload = (
        speed_of(context, clients, down, up, 1) for down, up in ((dense, 0), (none, traffic.up(1)))
    )
    steps = np.array([item.steps for item in work], np.int64)
    return Timing(download.sending, steps / download.speed, upload.sending)


def speed_of(
    context: DrawContext, clients: Ids, bytes_down: Ids, bytes_up: int, messages: Ids | int
) -> DeviceSpeed:
    """`device_speed` of `clients` [M] on the simulated clock of the run, in local steps of its algorithm."""
    devices = context.spec.systems.devices
    assert devices is not None
    found = device_speed(devices, clients, bytes_down, bytes_up, messages, context.seed, context.device_trace)
    return replace(found, speed=found.speed / context.gradients)
