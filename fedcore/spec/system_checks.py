"""What the blocks of systems heterogeneity cannot see alone: the number of clients, and one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedcore.errors import SpecificationError
from fedcore.spec.availability import AvailabilityTrace, RandomAvailability
from fedcore.spec.devices import Devices, PerClientRate
from fedcore.spec.participation import AnyParticipation, Bernoulli, WithoutReplacement
from fedcore.spec.systems import Systems

if TYPE_CHECKING:
    from fedcore.spec.availability import Probability


def check_systems(systems: Systems, scheme: AnyParticipation, clients: int) -> None:
    """Raises SpecificationError where availability, devices, deadline and participation do not fit N = `clients` or one another."""
    if isinstance(scheme, Bernoulli):
        _check_probability(scheme.probability, "/participation", clients)
    _check_unbiased(systems, scheme)
    _check_availability(systems, clients)
    if systems.devices is not None:
        _check_devices(systems.devices, clients)
    elif systems.deadline is not None:
        raise SpecificationError("/systems/deadline", "without `devices` no client takes any time; say how fast they are, or leave it out")


def _check_availability(systems: Systems, clients: int) -> None:
    availability = systems.availability
    if availability is None:
        return
    if isinstance(availability, RandomAvailability):
        _check_probability(availability.probability, "/systems/availability", clients)
    if isinstance(availability, AvailabilityTrace):
        strangers = [client for row in availability.rounds for client in row if client >= clients]
        if strangers:
            raise SpecificationError(
                "/systems/availability/rounds", f"client {strangers[0]} does not exist; the {clients} clients are numbered from 0"
            )


def _check_unbiased(systems: Systems, scheme: AnyParticipation) -> None:
    """Weights that divide by a client's chance to take part need that chance, as do those of S2."""
    if scheme.weighting != "unbiased" and not (isinstance(scheme, WithoutReplacement) and scheme.weighting is None):
        return
    for field, chance in (("availability", "be drawn"), ("deadline", "be on time")):
        if getattr(systems, field) is not None:
            raise SpecificationError(
                "/participation/weighting", f"with `systems.{field}` no client's chance to {chance} is known; use `samples` or `uniform`"
            )


def _check_probability(probability: Probability, pointer: str, clients: int) -> None:
    if isinstance(probability, tuple) and len(probability) != clients:
        raise SpecificationError(f"{pointer}/probability", f"one for all, or one for each of the {clients} clients, not {len(probability)}")


def _check_devices(devices: Devices, clients: int) -> None:
    for field in type(devices).model_fields:
        rate = getattr(devices, field)
        if isinstance(rate, PerClientRate) and len(rate.values) != clients:
            raise SpecificationError(
                f"/systems/devices/{field}/values", f"one value for each of the {clients} clients, not {len(rate.values)}"
            )
