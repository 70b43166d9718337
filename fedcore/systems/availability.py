"""Availability: the clients that can be reached in a round."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcore.random import generator, uniform_at
from fedcore.spec.systems import AnyAvailability, AvailabilityTrace, Probability

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

_PURPOSE = "availability"
SKIP_COST = 50
"""Picking out one client and asking it takes as long as asking so many, one after another."""


class Reachable(Protocol):
    """Those who can be reached in a round."""

    def all(self) -> Ids:
        """Ascending; where it is left to chance, this takes time that grows with the population."""

    def has(self, clients: Ids) -> Mask:
        """[m] true for each of `clients` [m] that can be reached."""

    def oversample_size(self, wanted: int) -> int | None:
        """Among so many clients drawn blindly so many as are `wanted` can be reached, most likely.

        None if `all` is as quick.
        """


@dataclass(frozen=True, slots=True)
class TraceAvailable:
    """Those given, ascending."""

    ids: Ids

    def all(self) -> Ids:
        """The list."""
        return self.ids

    def has(self, clients: Ids) -> Mask:
        """[m] membership of each client in the list."""
        return np.isin(clients, self.ids)

    def oversample_size(self, wanted: int) -> int | None:
        """The list is at hand."""
        return None


class Probabilities(NamedTuple):
    """Chances of clients."""

    each: Floats
    """[N], or [] of one for all."""
    mean: float
    most: float


@dataclass(frozen=True)
class RandomlyAvailable:
    """Each with its own chance, by a lot of its own in every round."""

    probability: Probability
    population: int
    seed: int
    round: int

    def all(self) -> Ids:
        """Draw for every client."""
        lots = generator(self.seed, _PURPOSE, self.round).random(self.population)
        return np.flatnonzero(lots < self._odds.each)

    def has(self, clients: Ids) -> Mask:
        """Draw only for `clients`."""
        each = self._odds.each
        reached: Mask = uniform_at(clients, self.seed, _PURPOSE, self.round) < (
            each[clients] if each.ndim else each
        )
        return reached

    def oversample_size(self, wanted: int) -> int | None:
        """By the mean of the chances."""
        # Six deviations more than there are wanted on average.
        tries = int((wanted + 6 * sqrt(wanted) + 36) / self._odds.mean)
        return tries if tries * SKIP_COST <= self.population else None

    @cached_property
    def _odds(self) -> Probabilities:
        return probabilities(self.probability)


def reachable(
    availability: AnyAvailability | None, population: int, seed: int, round: int
) -> Reachable | None:
    """The clients that can be reached in a round (counted from 1); None where all can."""
    match availability:
        case None:
            return None
        case AvailabilityTrace(rounds=rounds):
            return TraceAvailable(np.unique(np.array(rounds[(round - 1) % len(rounds)], np.int64)))
        case _:
            return RandomlyAvailable(availability.probability, population, seed, round)


def probabilities(probability: Probability) -> Probabilities:
    """Those that a specification gives."""
    return (
        _read(_Given(probability))
        if isinstance(probability, tuple)
        else Probabilities(np.array(probability), probability, probability)
    )


class _Given:
    """Numbers of a specification, by identity: a million of them take longer to read than a round
    takes.
    """

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self.numbers = numbers

    def __hash__(self) -> int:
        return id(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Given) and self.numbers is other.numbers


@lru_cache(maxsize=4)
def _read(given: _Given) -> Probabilities:
    each = np.array(given.numbers)
    return Probabilities(each, float(each.mean()), float(each.max()))
