"""Availability: the clients that can be reached in a round (`systems.availability`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import cycle, islice, repeat
from math import sqrt
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

from pydantic import Field

from fedcore.block import MAX_CLIENTS, Block, Fraction
from fedcore.errors import SpecificationError
from fedcore.families import Family
from fedcore.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedcore import random

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]
    Mask = NDArray[np.bool_]
else:
    np = LazyModule("numpy")
    random = LazyModule("fedcore.random")

ClientId = Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
Probability = (
    Fraction | Annotated[tuple[Fraction, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CLIENTS)]
)
_PURPOSE = "availability"
SKIP_COST = 50
"""Skipping to one client and drawing for it takes as long as drawing for this many in sequence."""


class Reachable(Protocol):
    """Those who can be reached in a round."""

    def all(self) -> Ids:
        """Ascending; where it is left to chance, this takes time that grows with the population."""

    def has(self, clients: Ids) -> Mask:
        """[m] true for each of `clients` [m] that can be reached."""

    def oversample_size(self, wanted: int) -> int | None:
        """Number of clients to draw blindly so that, most likely, `wanted` of them are reachable.

        None if asking all is as fast.
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
        lots = random.generator(self.seed, _PURPOSE, self.round).random(self.population)
        return np.flatnonzero(lots < self._odds.each)

    def has(self, clients: Ids) -> Mask:
        """Draw only for `clients`."""
        each = self._odds.each
        reached: Mask = random.uniform_at(clients, self.seed, _PURPOSE, self.round) < (
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


def each_probability(probability: Probability, clients: int) -> Iterable[float]:
    """The probability of each of the N = `clients` clients."""
    return probability if isinstance(probability, tuple) else repeat(probability, clients)


def expected_count(probability: Probability, clients: int) -> float:
    """Expected number of clients, if each is drawn with its probability."""
    return sum(probability) if isinstance(probability, tuple) else clients * probability


def check_probability(probability: Probability, pointer: str, clients: int) -> None:
    """Raise SpecificationError unless `probability` has one value, or one for each client."""
    if isinstance(probability, tuple) and len(probability) != clients:
        raise SpecificationError(
            f"{pointer}/probability",
            f"must be one value, or one for each of the {clients} clients, not {len(probability)}",
        )


def check_ids(rows: Sequence[Sequence[int]], clients: int, pointer: str) -> None:
    """Raise SpecificationError if a client of `rows` does not exist."""
    strangers = [client for row in rows for client in row if client >= clients]
    if strangers:
        raise SpecificationError(
            pointer, f"client {strangers[0]} does not exist; the {clients} clients are numbered from 0"
        )


class Availability(Block):
    """The clients that can be reached in each round."""

    if TYPE_CHECKING:
        kind: str

    def reachable(self, population: int, seed: int, round: int) -> Reachable:
        """The clients that can be reached in a round, counted from 1."""
        raise NotImplementedError

    def counts(self, clients: int) -> list[float]:
        """Expected number of clients that can be reached, for each kind of round."""
        raise NotImplementedError

    def odds(self, clients: int) -> Iterable[float] | None:
        """Probability of each client to be reached in any round; None if rounds differ."""
        return None

    def listed(self, rounds: int) -> list[set[int]] | None:
        """The clients that can be reached in each of the first `rounds` rounds; None if random."""
        return None

    def check(self, clients: int) -> None:
        """Raise SpecificationError if the block does not fit N = `clients`."""


class AvailabilityTrace(Availability):
    """Lists of available clients for each round, repeated cyclically."""

    example = {"rounds": [[0, 1], [0], []]}

    kind: Literal["trace"]
    rounds: Annotated[
        tuple[Annotated[tuple[ClientId, ...], Field(fail_fast=True)], ...],
        Field(fail_fast=True, min_length=1, max_length=100_000),
    ]
    """A list of client ids per round; with an empty list, no client is available."""

    def reachable(self, population: int, seed: int, round: int) -> Reachable:
        return TraceAvailable(np.unique(np.array(self.rounds[(round - 1) % len(self.rounds)], np.int64)))

    def counts(self, clients: int) -> list[float]:
        return [len(set(row)) for row in self.rounds]

    def listed(self, rounds: int) -> list[set[int]] | None:
        return list(map(set, islice(cycle(self.rounds), rounds)))

    def check(self, clients: int) -> None:
        check_ids(self.rounds, clients, "/systems/availability/rounds")


class RandomAvailability(Availability):
    """Each client is available with its probability, independently in every round."""

    example = {"probability": 0.8}

    kind: Literal["bernoulli"]
    probability: Probability
    """One probability for all clients, or one per client by client id."""

    def reachable(self, population: int, seed: int, round: int) -> Reachable:
        return RandomlyAvailable(self.probability, population, seed, round)

    def counts(self, clients: int) -> list[float]:
        return [expected_count(self.probability, clients)]

    def odds(self, clients: int) -> Iterable[float] | None:
        return each_probability(self.probability, clients)

    def check(self, clients: int) -> None:
        check_probability(self.probability, "/systems/availability", clients)


AVAILABILITIES = Family("availabilities", Availability, (AvailabilityTrace, RandomAvailability))

AnyAvailability = Annotated[Availability, AVAILABILITIES]
