"""Shares: how much owners have had of each queue, as `fairness` reckons it.

As in `tally`, each worker has rows of its own, so that none waits for another's; when a worker leaves, what it noted is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import case, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fedcore.platform.store.fairness import Account, Choice, Place
from fedcore.platform.store.idempotency import dialect_of
from fedcore.platform.store.tables import ShareRecord

_GONE = "gone"
_KEY = ("queue", "owner", "source")


def read(session: Session, worker: str, queues: Sequence[str]) -> tuple[dict[Place, Account], dict[str, float], dict[str, int]]:
    """What each owner has had of these queues; the clocks of the queues; and at which of its claims the worker last took from each."""
    own = case((ShareRecord.source == worker, ShareRecord.turn), else_=0)
    noted = func.sum(ShareRecord.seconds), func.max(ShareRecord.lift), func.max(ShareRecord.clock), func.max(own)
    query = select(ShareRecord.queue, ShareRecord.owner, *noted).where(ShareRecord.queue.in_(queues))
    accounts: dict[Place, Account] = {}
    clocks: dict[str, float] = {}
    turns: dict[str, int] = {}
    for queue, owner, seconds, lift, clock, turn in session.execute(query.group_by(ShareRecord.queue, ShareRecord.owner)):
        accounts[Place(queue, owner)] = Account(seconds, lift)
        clocks[queue], turns[queue] = max(clock, clocks.get(queue, 0.0)), max(turn, turns.get(queue, 0))
    return accounts, clocks, turns


def note(session: Session, worker: str, choice: Choice) -> None:
    """A worker has taken a run."""
    # No less than what others noted: where two take at once, neither undoes the other.
    noted = {"lift": choice.lift, "clock": choice.clock, "turn": choice.turn}
    _write(session, worker, choice.flow.place, noted | {"seconds": 0.0}, noted)


def charge(session: Session, worker: str, place: Place, seconds: float) -> None:
    """A worker has computed for an owner."""
    first = {"seconds": seconds, "lift": 0.0, "clock": 0.0, "turn": 0}
    _write(session, worker, place, first, {"seconds": ShareRecord.seconds + seconds})


def retire(session: Session, workers: Sequence[str]) -> None:
    """These are gone; what they noted stays."""
    columns = ShareRecord.queue, ShareRecord.owner, ShareRecord.seconds, ShareRecord.lift, ShareRecord.clock
    for queue, owner, seconds, lift, clock in session.execute(
        delete(ShareRecord).where(ShareRecord.source.in_(workers)).returning(*columns)
    ).all():
        values = {"seconds": seconds, "lift": lift, "clock": clock, "turn": 0}
        merged = {"seconds": ShareRecord.seconds + seconds, "lift": _most(ShareRecord.lift, lift), "clock": _most(ShareRecord.clock, clock)}
        _write(session, _GONE, Place(queue, owner), values, merged)


def _most(column: InstrumentedAttribute[float], value: float) -> Any:
    return case((column < value, value), else_=column)


def _write(session: Session, source: str, place: Place, values: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    insert = dialect_of(session).insert(ShareRecord).values(source=source, **place._asdict(), **values)
    session.execute(insert.on_conflict_do_update(index_elements=_KEY, set_=again))
