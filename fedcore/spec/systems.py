"""`systems`: systems heterogeneity, and what its blocks require of each other."""

from typing import Self

from pydantic import model_validator

from fedcore.block import Block
from fedcore.data.base import DataShape
from fedcore.errors import SpecificationError
from fedcore.systems.attacks import AnyAttack
from fedcore.systems.availability import AnyAvailability
from fedcore.systems.clock import Deadline, Devices
from fedcore.systems.participation import Participation
from fedcore.systems.work import AnyBatch, AnyWork, Stragglers


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
    attack: AnyAttack | None = None
    """Malicious clients, and what they do (default: none)."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give `epochs` or `steps`, not both")
        return self


def check_systems(
    systems: Systems, participation: Participation, clients: int, rounds: int, shape: DataShape
) -> None:
    """Raise SpecificationError if blocks do not fit N = `clients`, `rounds`, data of `shape`, or one
    another.
    """
    for field in ("epochs", "steps", "batch_size"):
        work = getattr(systems, field)
        if work is not None:
            work.check(clients, rounds, f"/systems/{field}")
    _check_unbiased(systems, participation)
    if systems.attack is not None:
        systems.attack.check(shape, clients)
    if systems.availability is not None:
        systems.availability.check(clients)
    if systems.devices is None:
        _check_without_clock(systems, participation)
    else:
        systems.devices.check(clients)


def _check_without_clock(systems: Systems, participation: Participation) -> None:
    """Nothing may need the devices that are not given."""
    availability = systems.availability
    if participation.needs_devices():
        raise SpecificationError(
            "/systems/devices", f"participation `{participation.kind}` requires `devices`: give their speed"
        )
    if availability is not None and availability.needs_devices():
        raise SpecificationError(
            "/systems/devices",
            f"availability `{availability.kind}` is about times on the simulated clock, which requires"
            " `devices`: give their speed",
        )
    if systems.deadline is not None:
        raise SpecificationError(
            "/systems/deadline", "requires `devices`; give their speed, or omit the deadline"
        )


def _check_unbiased(systems: Systems, participation: Participation) -> None:
    """Weights that divide by a client's probability to take part need that probability."""
    if (participation.weighting or participation.own_weighting) != "unbiased":
        return
    for field, chance in (("availability", "be drawn"), ("deadline", "be on time")):
        if getattr(systems, field) is not None:
            raise SpecificationError(
                "/participation/weighting",
                f"with `systems.{field}`, a client's probability to {chance} is unknown; use `samples` or"
                " `uniform`",
            )
