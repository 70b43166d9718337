"""The event queue of an asynchronous run: which clients train, from which model each started, and
when each arrives on the simulated clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from fedcore.engine.codec import stored
from fedcore.engine.tiers import Tiers
from fedcore.errors import SpecificationError
from fedcore.random import generator
from fedcore.systems.work import Work

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from fedcore.systems.asynchrony import ClientsAtATime
    from fedcore.systems.availability import AvailabilityData, Reachable

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

MAX_WAITS = 20_000
"""How many times in a row the server looks for clients that it can start, while none trains."""


@stored
class Flight(NamedTuple):
    """A client in training. Flights are ordered by their arrival, and then by their start."""

    finishes: float
    """Simulated seconds from the start of the run to the arrival of the update."""
    dispatch: int
    """How many clients had been started before this one."""
    client: int
    version: int
    """Steps the server had taken when the client started."""
    steps: int
    batch_size: int

    @property
    def work(self) -> Work:
        """The work that the client does."""
        return Work(self.steps, self.batch_size)


class Planned(NamedTuple):
    """The work [M] of clients that start now, and how many seconds [M] pass until each arrives."""

    work: Sequence[Work]
    seconds: Floats


@stored
@dataclass(frozen=True, slots=True)
class EventQueue:
    """The clients in training between two steps of the server, and the models they started from."""

    flights: tuple[Flight, ...] = ()
    """Clients in training, ordered by arrival."""
    now: float = 0.0
    """Simulated seconds since the start of the run."""
    dispatches: int = 0
    """Number of clients started so far."""
    models: Mapping[int, Tensor] = field(default_factory=dict)
    """[D] each: the model of each version that a client in training started from."""
    statistics: Mapping[int, Tensor] = field(default_factory=dict)
    """[S] each: the running statistics of batch norm that went with it, if there are such."""
    tiers: Tiers | None = None
    """The tiers of clients, if they start in such."""

    def with_version(self, version: int, model: Tensor, statistics: Tensor | None) -> EventQueue:
        """The queue that knows the model [D] and the statistics [S] of a version."""
        known = self.statistics if statistics is None else {**self.statistics, version: statistics}
        return replace(self, models={**self.models, version: model}, statistics=known)

    def without_unused(self) -> EventQueue:
        """The queue with only the versions that clients in training started from."""
        used = {flight.version for flight in self.flights}
        return replace(
            self,
            models={version: model for version, model in self.models.items() if version in used},
            statistics={version: known for version, known in self.statistics.items() if version in used},
        )

    def idle_tiers(self) -> list[int]:
        """The tiers of which no client trains."""
        assert self.tiers is not None
        return _idle(self.tiers, self.flights)


def _versions(prefix: str, state: Mapping[str, Tensor], like: Tensor) -> dict[int, Tensor]:
    return {
        int(name.removeprefix(prefix)): value.to(like)
        for name, value in state.items()
        if name.startswith(prefix)
    }


class Arrivals(NamedTuple):
    """The clients whose arrival makes a step of the server, and the queue after it."""

    flights: Sequence[Flight]
    """Clients that arrived, ordered by arrival."""
    queue: EventQueue
    seconds: float
    """Simulated time since the last step."""
    busy: float
    """Mean number of clients that trained in that time; at the end, if it took none."""
    places: int
    """How many could have."""


def await_arrivals(
    queue: EventQueue,
    asynchrony: ClientsAtATime,
    version: int,
    population: int,
    seed: int,
    plan: Callable[[Ids], Planned],
    available: AvailabilityData | None = None,
) -> Arrivals:
    """Go on from the step of the server that made `version` to the arrivals of the next.

    Whenever fewer than `concurrency` clients train, others that can be reached are started, with
    `plan` for what they do. If there are not enough, the server looks again when a client arrives, and
    after the time that `available` gives. Of events at the same moment, arrivals come before starts, and
    arrivals are in the order in which the clients were started. A client whose update waits in the
    buffer is not started again before the step that takes it.

    Raises SpecificationError if no client can be reached for too long.
    """
    flying, now, dispatches = list(queue.flights), queue.now, queue.dispatches
    heapify(flying)
    arrived: list[Flight] = []
    busy_seconds, busy, waits = 0.0, 0, 0
    wait = inf if available is None else available.empty_round_seconds()
    while len(arrived) < asynchrony.arrivals:
        if not flying or flying[0].finishes > now:
            taken = np.array([flight.client for flight in (*flying, *arrived)], np.int64)
            wanted = asynchrony.concurrency - len(flying)
            reachable = None
            if available is not None:
                reachable = available.reachable_at(now, population, seed, version + 1)
            rng = generator(seed, "dispatch", dispatches)
            clients = draw_others(taken, wanted, population, rng, reachable)
            for flight in _started(clients, version, now, dispatches, plan):
                heappush(flying, flight)
            dispatches += len(clients)
        busy = len(flying)
        looks_again = now + wait if busy < asynchrony.concurrency else inf
        if looks_again < (flying[0].finishes if flying else inf):
            waits = _count_wait(waits, training=busy, wait=wait)
            busy_seconds, now = busy_seconds + wait * busy, looks_again
            continue
        flight = heappop(flying)
        busy_seconds += (flight.finishes - now) * busy
        now = flight.finishes
        arrived.append(flight)
    seconds = now - queue.now
    left = replace(queue, flights=tuple(sorted(flying)), now=now, dispatches=dispatches)
    mean = busy_seconds / seconds if seconds else float(busy)
    return Arrivals(arrived, left, seconds, mean, asynchrony.concurrency)


def await_tier(
    queue: EventQueue,
    version: int,
    draw_cohorts: Callable[[Sequence[int], float], Ids],
    plan: Callable[[Ids], Planned],
    wait: float = inf,
) -> Arrivals:
    """Go on from the step of the server that made `version` until a tier ends its round.

    `draw_cohorts` gives the clients [m] of the tiers that do not train which can be started at a time;
    `plan` says what they do. While there is none of a tier, the server looks again every `wait`
    seconds. A tier ends its round when its last client arrives; of tiers at the same moment, the
    fastest comes first.

    Raises SpecificationError if no client can be reached for too long.
    """
    tiers = queue.tiers
    assert tiers is not None
    flying, now, dispatches = list(queue.flights), queue.now, queue.dispatches
    busy, waits = 0.0, 0
    while True:
        cohorts = draw_cohorts(_idle(tiers, flying), now)
        flying = sorted((*flying, *_started(cohorts, version, now, dispatches, plan)))
        dispatches += len(cohorts)
        tier_of = [int(tiers.members[flight.client]) for flight in flying]
        # The last of each tier overwrites the others.
        ends = {tier: flight.finishes for tier, flight in zip(tier_of, flying, strict=True)}
        end, ended = min(((finishes, tier) for tier, finishes in ends.items()), default=(inf, -1))
        looks_again = now + wait if len(ends) < tiers.count else inf
        until = min(end, looks_again)
        busy += sum(max(0.0, min(flight.finishes, until) - now) for flight in flying)
        now = until
        if end <= looks_again:
            break
        waits = _count_wait(waits, training=len(flying), wait=wait)
    seconds = now - queue.now
    arrived = [flight for tier, flight in zip(tier_of, flying, strict=True) if tier == ended]
    left = tuple(flight for tier, flight in zip(tier_of, flying, strict=True) if tier != ended)
    return Arrivals(
        arrived,
        replace(queue, flights=left, now=now, dispatches=dispatches),
        seconds,
        busy / seconds if seconds else float(len(flying)),
        len(flying),
    )


def _idle(tiers: Tiers, flights: Sequence[Flight]) -> list[int]:
    training = {int(tiers.members[flight.client]) for flight in flights}
    return [tier for tier in range(tiers.count) if tier not in training]


def _count_wait(waits: int, *, training: int, wait: float) -> int:
    """The number of waits in a row while no client trains, after another one."""
    if waits == MAX_WAITS:
        raise SpecificationError(
            "/systems/availability",
            f"no client could be started in {MAX_WAITS} waits of {wait:g} simulated seconds: let more clients"
            " be reached, or use a larger `wait_seconds`",
        )
    return 0 if training else waits + 1


def _started(
    clients: Ids, version: int, now: float, dispatches: int, plan: Callable[[Ids], Planned]
) -> list[Flight]:
    if not len(clients):
        return []
    planned = plan(clients)
    members = zip(clients.tolist(), planned.work, planned.seconds.tolist(), strict=True)
    return [
        Flight(now + seconds, dispatches + place, client, version, work.steps, work.batch_size)
        for place, (client, work, seconds) in enumerate(members)
    ]


def draw_others(
    taken: Ids, wanted: int, population: int, rng: Generator, reachable: Reachable | None = None
) -> Ids:
    """Draw `wanted` clients uniformly from the clients 0..N-1 that are not `taken` [m], in random
    order; all of them if there are fewer. Only those `reachable` are drawn, None meaning all.

    The time depends on the numbers of clients drawn and taken, not on N = `population`, unless only few
    can be reached.
    """
    if reachable is not None:
        return _draw_reachable(taken, wanted, population, rng, reachable)
    free = population - len(taken)
    ranks = rng.choice(free, min(wanted, free), replace=False)
    taken = np.sort(taken)
    # The k-th taken client has taken[k] - k free ones before it.
    drawn: Ids = ranks + np.searchsorted(taken - np.arange(len(taken)), ranks, side="right")
    return drawn


def _draw_reachable(taken: Ids, wanted: int, population: int, rng: Generator, reachable: Reachable) -> Ids:
    """`draw_others`: the first who can be reached of clients drawn from all, as `participation` draws, or a
    draw from all who can.
    """
    tries = reachable.oversample_size(wanted)
    if tries is not None:
        drawn = draw_others(taken, tries, population, rng)
        found = drawn[reachable.has(drawn)]
        if len(found) >= wanted:
            return found[:wanted]
    free = np.setdiff1d(reachable.all(), taken)
    others: Ids = free[rng.choice(len(free), min(wanted, len(free)), replace=False)]
    return others
