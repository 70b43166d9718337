"""Availability: the clients that can be reached in a round (`systems.availability`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import cos, pi, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

from pydantic import Field, model_validator

from fedcore.block import MAX_CLIENTS, Block, Finite, Fraction, check_bounds
from fedcore.caching import CacheKey
from fedcore.errors import SpecificationError
from fedcore.families import Family
from fedcore.lazy import np, random
from fedcore.systems.availability_traces import Intervals, read_intervals
from fedcore.systems.trace_files import FileDigest, FileName, find_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]
    Mask = NDArray[np.bool_]

ClientId = Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
Probability = (
    Fraction | Annotated[tuple[Fraction, ...], Field(fail_fast=True, min_length=1, max_length=MAX_CLIENTS)]
)
_PURPOSE = "availability"
SKIP_COST = 50
"""Skipping to one client and drawing for it takes as long as drawing for this many in sequence."""


class Reachable(Protocol):
    """Clients that can be reached in a round."""

    def all(self) -> Ids:
        """Ids of all clients that can be reached, ascending; where it is left to chance, this takes
        time that grows with the population.
        """

    def has(self, clients: Ids) -> Mask:
        """[m] true for each of `clients` [m] that can be reached."""

    def oversample_size(self, wanted: int) -> int | None:
        """Number of clients to draw blindly so that, most likely, `wanted` of them are reachable.

        None if asking all is as fast.
        """


@dataclass(frozen=True, slots=True)
class TraceAvailable:
    """Clients that are listed, in ascending order."""

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
        """Number of clients to draw, from the mean of their chances to be reached."""
        return _oversample_size(wanted, self._odds.mean, self.population)

    @cached_property
    def _odds(self) -> Probabilities:
        return read_probabilities(self.probability)


def _oversample_size(wanted: int, mean: float, population: int) -> int | None:
    # Six deviations more than there are wanted on average.
    tries = int((wanted + 6 * sqrt(wanted) + 36) / mean) if mean else population
    return tries if tries * SKIP_COST <= population else None


def read_probabilities(probability: Probability) -> Probabilities:
    """Probabilities that a specification gives."""
    return (
        _read(CacheKey(probability, id(probability)))
        if isinstance(probability, tuple)
        else Probabilities(np.array(probability), probability, probability)
    )


# A million numbers take longer to read than a round takes.
@lru_cache(maxsize=4)
def _read(given: CacheKey[tuple[float, ...]]) -> Probabilities:
    each = np.array(given.value)
    return Probabilities(each, float(each.mean()), float(each.max()))


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


class AvailabilityData(Protocol):
    """An availability with the content of its file, if it has one."""

    def empty_round_seconds(self) -> float:
        """Simulated length of a round in which no client can be reached, without a deadline."""

    def reachable_at(self, seconds: float, population: int, seed: int, round: int) -> Reachable:
        """The clients that can be reached in a round that begins at `seconds` on the simulated clock."""


class Availability(Block):
    """The clients that can be reached in each round."""

    if TYPE_CHECKING:
        kind: str

    def needs_devices(self) -> bool:
        """Return True if it is about times on the simulated clock."""
        return False

    def empty_round_seconds(self) -> float:
        """Simulated length of a round without clients: none."""
        return 0.0

    def reachable(self, population: int, seed: int, round: int) -> Reachable:
        """The clients that can be reached in a round, counted from 1."""
        raise NotImplementedError

    def reachable_at(self, seconds: float, population: int, seed: int, round: int) -> Reachable:
        """The clients that can be reached in a round that begins at `seconds` on the simulated
        clock.
        """
        return self.reachable(population, seed, round)

    def load(self, folder: Path) -> AvailabilityData:
        """The availability with the content of its file in `folder`, FEDQ_DATA_DIR.

        Raises DataUnavailableError if that cannot be read.
        """
        return self

    def check(self, clients: int) -> None:
        """Raise SpecificationError if the block does not fit N = `clients`."""


class AvailabilityTrace(Availability):
    """Lists of available clients for each round, repeated cyclically."""

    example = {"rounds": [[0, 1], [0], []]}

    kind: Literal["trace"] = "trace"
    rounds: Annotated[
        tuple[Annotated[tuple[ClientId, ...], Field(fail_fast=True)], ...],
        Field(fail_fast=True, min_length=1, max_length=100_000),
    ]
    """A list of client ids per round; with an empty list, no client is available."""

    def reachable(self, population: int, seed: int, round: int) -> Reachable:
        return TraceAvailable(np.unique(np.array(self.rounds[(round - 1) % len(self.rounds)], np.int64)))

    def check(self, clients: int) -> None:
        check_ids(self.rounds, clients, "/systems/availability/rounds")


class RandomAvailability(Availability):
    """Each client is available with its probability, independently in every round."""

    example = {"probability": 0.8}

    kind: Literal["bernoulli"] = "bernoulli"
    probability: Probability
    """One probability for all clients, or one per client by client id."""

    def reachable(self, population: int, seed: int, round: int) -> Reachable:
        return RandomlyAvailable(self.probability, population, seed, round)

    def check(self, clients: int) -> None:
        check_probability(self.probability, "/systems/availability", clients)


PositiveSeconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class TimedAvailability(Availability):
    """The clients that can be reached at each time on the simulated clock."""

    wait_seconds: PositiveSeconds = 60.0
    """Simulated length of a round in which no client can be reached, unless a `deadline` gives it. With
    `asynchrony`, the server looks again after this time if it could not start enough clients.
    """

    def needs_devices(self) -> bool:
        return True

    def empty_round_seconds(self) -> float:
        return self.wait_seconds


class DiurnalAvailability(TimedAvailability):
    """Availability by the time of day on the simulated clock, which needs `systems.devices`.

    At second t, each client can be reached with the probability

        p(t) = low + (high - low) (1 + cos(2 pi (t - peak_seconds) / period_seconds)) / 2

    It is decided anew every `session_seconds`, at times of its own for each client, by draws that
    depend on the seed, the client and the session. Bonawitz et al. (Towards Federated Learning at
    Scale, MLSys 2019) observed four times as many devices at the best as at the worst time of a
    day, in one country; absolute numbers are not published.
    """

    example = {"low": 0.1, "high": 0.4, "session_seconds": 600.0}

    kind: Literal["diurnal"] = "diurnal"
    low: Fraction
    """Probability at the worst time of day."""
    high: Fraction
    """Probability at the best time of day."""
    session_seconds: PositiveSeconds
    """Seconds between two decisions of a client."""
    period_seconds: PositiveSeconds = 86_400.0
    """Length of a day."""
    peak_seconds: Finite = 0.0
    """The best time, in seconds from the start of the run."""

    _ordered = model_validator(mode="after")(check_bounds)

    def probability(self, seconds: float) -> float:
        """p of `seconds`."""
        angle = 2 * pi * (seconds - self.peak_seconds) / self.period_seconds
        return self.low + (self.high - self.low) * (1 + cos(angle)) / 2

    def reachable_at(self, seconds: float, population: int, seed: int, round: int) -> Reachable:
        return _InSession(self.probability(seconds), seconds / self.session_seconds, population, seed)


@dataclass(frozen=True, slots=True)
class _InSession:
    """Each with its chance in the session that it is in."""

    probability: float
    sessions: float
    """Since the start of the run, of a client that began one at that time."""
    population: int
    seed: int

    def all(self) -> Ids:
        """Draw for every client."""
        clients = np.arange(self.population)
        return clients[self.has(clients)]

    def has(self, clients: Ids) -> Mask:
        """Draw only for `clients`."""
        phases = random.uniform_at(clients, self.seed, "availability phase")
        first = int(self.sessions)
        # Sessions begin at different times, so that clients are in one of two.
        now, later = (random.uniform_at(clients, self.seed, _PURPOSE, first + more) for more in (0, 1))
        reached: Mask = np.where(self.sessions + phases < first + 1, now, later) < self.probability
        return reached

    def oversample_size(self, wanted: int) -> int | None:
        """Number of clients to draw, from their chance to be reached."""
        return _oversample_size(wanted, self.probability, self.population)


class TimedTrace(TimedAvailability):
    """Measured availability on the simulated clock, which needs `systems.devices`: a file in the
    format of FedScale's `client_behave_trace` (Lai et al., FedScale, arXiv:2105.11367, made from
    the phones of Yang et al., WWW 2021: phones that charge are available).

    The file is JSON, since FedQ reads no pickles, of the structure of FedScale's: {device:
    {"active": [seconds], "inactive": [seconds], "finish_time": seconds}}. As in FedScale, a device can be
    reached at second t if active[k] <= t mod finish_time <= inactive[k] for some k. Each client gets
    one device, drawn with replacement from the seed and the client id. Departures: FedScale assigns
    devices in the order of client ids, may miss an interval if more than one ends between two
    rounds, and loses clients that cannot be reached when their work ends.
    """

    example = {"file": "client_behave_trace.json"}

    kind: Literal["timed_trace"] = "timed_trace"
    file: FileName = "client_behave_trace.json"
    """Name of the file in FEDQ_DATA_DIR."""
    digest: FileDigest = None
    """SHA-256 that the file must have (default: it is not checked)."""

    def load(self, folder: Path) -> AvailabilityData:
        path = folder / self.file
        found = find_digest(path, self.digest, "systems.availability", "client_behave_trace")
        return LoadedTrace(self.wait_seconds, read_intervals(path, found))


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """A trace of R devices on the simulated clock."""

    wait_seconds: float
    intervals: Intervals

    def empty_round_seconds(self) -> float:
        """Simulated length of a round without clients, as the specification gives it."""
        return self.wait_seconds

    def reachable_at(self, seconds: float, population: int, seed: int, round: int) -> Reachable:
        """The clients whose device can be reached."""
        return _OfDevices(self.intervals.reached(seconds), population, seed)


@dataclass(frozen=True, slots=True)
class _OfDevices:
    """Clients with one of the devices that can be reached."""

    reached: Mask
    """[R]"""
    population: int
    seed: int

    def all(self) -> Ids:
        """Look at the device of every client."""
        clients = np.arange(self.population)
        return clients[self.has(clients)]

    def has(self, clients: Ids) -> Mask:
        """Look only at the devices of `clients`."""
        drawn = random.uniform_at(clients, self.seed, "availability trace") * len(self.reached)
        reached: Mask = self.reached[drawn.astype(np.int64)]
        return reached

    def oversample_size(self, wanted: int) -> int | None:
        """Number of clients to draw, from the share of devices that can be reached."""
        return _oversample_size(wanted, float(self.reached.mean()), self.population)


AVAILABILITIES = Family(
    "availabilities",
    Availability,
    (AvailabilityTrace, RandomAvailability, DiurnalAvailability, TimedTrace),
)

AnyAvailability = Annotated[Availability, AVAILABILITIES]
