"""Fair turns: whose run is taken next. A policy over plain values; `turn` asks the database for them.

Higher priority first. A worker that serves several queues takes from them in turn. Within a queue, owners share the workers by
start-time fair queueing (Goyal, Vin and Cheng, IEEE/ACM Trans. Networking 5(5), 1997) with an owner as a flow and seconds of rounds
as length: the owner whom the fewest workers serve comes first, of those the one with the least virtual time

    S_o = max(L_o + sum of the seconds computed for o, v),        v <- max(v, min of S over the owners who could be served)

and of those the one who has waited longest. v is the queue's clock; L_o lifts an owner who was away to it, so that nobody gains by
having been idle, outranked or over a quota, and nobody pays for having had the workers to himself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple


class Place(NamedTuple):
    """An owner in a queue."""

    queue: str
    owner: str


@dataclass(frozen=True, slots=True)
class Flow:
    """The runs that one key of an owner has waiting in a queue; the rest is that of the best of them."""

    place: Place
    key_id: str
    priority: int
    queued_at: datetime
    run_id: str


@dataclass(frozen=True, slots=True)
class Account:
    """What an owner has had of a queue."""

    seconds: float = 0.0
    """Computed for him."""
    lift: float = 0.0
    """L: added for the time that he was away."""


@dataclass(frozen=True, slots=True)
class Books:
    """What a worker that takes a run must know beside what waits."""

    accounts: Mapping[Place, Account] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    """v, by queue."""
    serving: Mapping[Place, int] = field(default_factory=dict)
    """How many workers play runs of an owner."""
    turns: Mapping[str, int] = field(default_factory=dict)
    """Counts this worker's claims: at which it last took from a queue."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken next, and what is then to be noted."""

    flow: Flow
    lift: float
    clock: float
    turn: int


def choose(flows: Iterable[Flow], books: Books) -> Choice | None:
    """The flow whose best run is to be taken; None where nothing waits."""
    waiting = list(flows)
    if not waiting:
        return None
    highest = max(flow.priority for flow in waiting)
    ranked = [flow for flow in waiting if flow.priority == highest]
    queue = min({flow.place.queue for flow in ranked}, key=lambda queue: (books.turns.get(queue, 0), queue))
    within = [flow for flow in ranked if flow.place.queue == queue]
    clock = books.clocks.get(queue, 0.0)
    starts = {flow.place: max(_time(books, flow.place), clock) for flow in within}
    first = min(within, key=lambda flow: (books.serving.get(flow.place, 0), starts[flow.place], flow.queued_at, flow.run_id))
    seconds = books.accounts.get(first.place, Account()).seconds
    return Choice(first, starts[first.place] - seconds, min(starts.values()), 1 + max(books.turns.values(), default=0))


def _time(books: Books, place: Place) -> float:
    account = books.accounts.get(place, Account())
    return account.lift + account.seconds
