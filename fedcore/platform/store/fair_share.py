"""Fair scheduling among owners: a policy over plain values, and the usage it accounts by.

Higher priority first. A worker that serves several queues takes from them in turn. Within a queue,
owners share the workers by start-time fair queueing (Goyal, Vin and Cheng, IEEE/ACM Trans.
Networking 5(5), 1997) with an owner as a flow and seconds of rounds as length: the owner whom the
fewest workers serve comes first, of those the one with the least virtual time

    S_o = max(L_o + sum of the seconds computed for o, v)
    v <- max(v, min of S over the owners who could be served)

and of those the one who has waited longest. v is the queue's clock; L_o lifts an owner who was away
to it, so that no owner gains by having been idle, outranked or over a quota, and none pays for
having had all workers.

As in `tally`, each worker has rows of its own, so that none waits for another's; when a worker
leaves, what it noted is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import case, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fedcore.platform.store.idempotency import dialect_of
from fedcore.platform.store.tables import ShareRecord


class OwnerQueue(NamedTuple):
    """An owner in a queue."""

    queue: str
    owner: str


@dataclass(frozen=True, slots=True)
class RunCandidate:
    """The runs that one key of an owner has waiting in a queue.

    Priority, time and id are those of the best of these runs.
    """

    place: OwnerQueue
    key_id: str
    priority: int
    queued_at: datetime
    run_id: str


@dataclass(frozen=True, slots=True)
class OwnerUsage:
    """Use of a queue by an owner."""

    seconds: float = 0.0
    """Computed for the owner."""
    lift: float = 0.0
    """L: added for the time that the owner was away."""


@dataclass(frozen=True, slots=True)
class FairShareState:
    """State of fair sharing that a worker needs to choose among the candidates."""

    queues: Sequence[str]
    """Queues of the worker, in the order in which it takes from them."""
    accounts: Mapping[OwnerQueue, OwnerUsage] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    """v, by queue."""
    serving: Mapping[OwnerQueue, int] = field(default_factory=dict)
    """Number of workers that execute runs of an owner."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """The candidate chosen, and the values to be recorded with it."""

    flow: RunCandidate
    lift: float
    clock: float


def choose_candidate(flows: Iterable[RunCandidate], state: FairShareState) -> ScheduledRun | None:
    """Choose the candidate whose best run is taken next; None where none is queued."""
    waiting = list(flows)
    if not waiting:
        return None
    highest = max(flow.priority for flow in waiting)
    ranked = [flow for flow in waiting if flow.priority == highest]
    queue = min({flow.place.queue for flow in ranked}, key=state.queues.index)
    within = [flow for flow in ranked if flow.place.queue == queue]
    clock = state.clocks.get(queue, 0.0)
    starts = {flow.place: max(_time(state, flow.place), clock) for flow in within}
    first = min(
        within,
        key=lambda flow: (state.serving.get(flow.place, 0), starts[flow.place], flow.queued_at, flow.run_id),
    )
    seconds = state.accounts.get(first.place, OwnerUsage()).seconds
    return ScheduledRun(first, starts[first.place] - seconds, min(starts.values()))


def _time(state: FairShareState, queue: OwnerQueue) -> float:
    account = state.accounts.get(queue, OwnerUsage())
    return account.lift + account.seconds


_GONE = "gone"
_KEY = ("queue", "owner", "source")


def read_usage(
    session: Session, queues: Sequence[str]
) -> tuple[dict[OwnerQueue, OwnerUsage], dict[str, float]]:
    """Read each owner's use of these queues, and the clocks of the queues."""
    noted = func.sum(ShareRecord.seconds), func.max(ShareRecord.lift), func.max(ShareRecord.clock)
    query = select(ShareRecord.queue, ShareRecord.owner, *noted).where(ShareRecord.queue.in_(queues))
    accounts: dict[OwnerQueue, OwnerUsage] = {}
    clocks: dict[str, float] = {}
    for queue, owner, seconds, lift, clock in session.execute(
        query.group_by(ShareRecord.queue, ShareRecord.owner)
    ):
        accounts[OwnerQueue(queue, owner)] = OwnerUsage(seconds, lift)
        clocks[queue] = max(clock, clocks.get(queue, 0.0))
    return accounts, clocks


def read_clocks(session: Session, queues: Sequence[str]) -> dict[str, float]:
    """Read the clocks of these queues."""
    latest = select(ShareRecord.queue, func.max(ShareRecord.clock)).where(ShareRecord.queue.in_(queues))
    return dict(session.execute(latest.group_by(ShareRecord.queue)).all())


def record_pick(session: Session, worker: str, choice: ScheduledRun) -> None:
    """A worker has taken a run."""
    # No less than what others noted: where two take at once, neither undoes the other.
    noted = {"lift": choice.lift, "clock": choice.clock}
    _write(session, worker, choice.flow.place, noted | {"seconds": 0.0}, noted)


def add_seconds(session: Session, worker: str, queue: OwnerQueue, seconds: float) -> None:
    """A worker has computed for an owner."""
    first = {"seconds": seconds, "lift": 0.0, "clock": 0.0}
    _write(session, worker, queue, first, {"seconds": ShareRecord.seconds + seconds})


def archive(session: Session, workers: Sequence[str]) -> None:
    """Add what these workers have recorded to the sums that stay of workers that are gone."""
    columns = ShareRecord.queue, ShareRecord.owner, ShareRecord.seconds, ShareRecord.lift, ShareRecord.clock
    sums: dict[OwnerQueue, tuple[float, float, float]] = {}
    for queue, owner, seconds, lift, clock in session.execute(
        delete(ShareRecord).where(ShareRecord.source.in_(workers)).returning(*columns)
    ):
        place = OwnerQueue(queue, owner)
        before = sums.get(place, (0.0, 0.0, 0.0))
        sums[place] = before[0] + seconds, max(before[1], lift), max(before[2], clock)
    # In order, so that none of two that write the same rows waits for the other in turn.
    for place, (seconds, lift, clock) in sorted(sums.items()):
        values = {"seconds": seconds, "lift": lift, "clock": clock}
        merged = {
            "seconds": ShareRecord.seconds + seconds,
            "lift": _most(ShareRecord.lift, lift),
            "clock": _most(ShareRecord.clock, clock),
        }
        _write(session, _GONE, place, values, merged)


def _most(column: InstrumentedAttribute[float], value: float) -> Any:
    return case((column < value, value), else_=column)


def _write(
    session: Session, source: str, queue: OwnerQueue, values: Mapping[str, Any], again: Mapping[str, Any]
) -> None:
    insert = dialect_of(session).insert(ShareRecord).values(source=source, **queue._asdict(), **values)
    session.execute(insert.on_conflict_do_update(index_elements=_KEY, set_=again))
