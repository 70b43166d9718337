"""Counters of events since the start of the service, incremented in the transaction of the event.

Each source has rows of its own, so that workers never wait for one another; when a worker leaves,
its counts are kept. Totals only grow: they do not count the rows that exist, which users delete.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from fedcore.platform.store.idempotency import dialect_of
from fedcore.platform.store.tables import TallyRecord

ROUNDS, CLAIMS, ERRORS, EXPIRIES, SLICE_SECONDS = "rounds", "claims", "errors", "expiries", "slice_seconds"
DELIVERED, UNDELIVERED, GIVEN_UP = "webhook_delivered", "webhook_undelivered", "webhook_given_up"
RETENTION_FAILURES = "retention_failures"
SLICE_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, inf)
"""Upper bounds of the histogram of slices."""
_GONE = "gone"
"""Source of the counters of all that are gone."""


def add(session: Session, source: str, counts: Mapping[str, float]) -> None:
    """Add to the counters of `source`, a worker or another part of the service."""
    insert = dialect_of(session).insert(TallyRecord)
    # In one order, so that none of two that write the same rows waits for the other in turn.
    rows = [{"source": source, "name": name, "value": value} for name, value in sorted(counts.items())]
    more = {"value": TallyRecord.value + insert.excluded.value}
    session.execute(insert.values(rows).on_conflict_do_update(index_elements=["source", "name"], set_=more))


def add_slice(session: Session, source: str, rounds: int, seconds: float) -> None:
    """Count a committed slice of `rounds` rounds that took `seconds`."""
    add(
        session,
        source,
        {
            ROUNDS: rounds,
            SLICE_SECONDS: seconds,
            slice_buckets(SLICE_BOUNDS_S[bisect_left(SLICE_BOUNDS_S, seconds)]): 1,
        },
    )


def slice_buckets(bound_s: float) -> str:
    """Counter of slices of at most `bound_s` seconds, and more than the next smaller bound."""
    return f"slices_le_{bound_s:g}"


def archive(session: Session, sources: Sequence[str]) -> None:
    """Move the counters of sources that are gone to the total."""
    left: defaultdict[str, float] = defaultdict(float)
    taken = (
        delete(TallyRecord)
        .where(TallyRecord.source.in_(sources))
        .returning(TallyRecord.name, TallyRecord.value)
    )
    for name, value in session.execute(taken):
        left[name] += value
    if left:
        add(session, _GONE, left)


def totals(session: Session) -> dict[str, float]:
    """Sums over all sources, by name."""
    return dict(
        session.execute(
            select(TallyRecord.name, func.sum(TallyRecord.value)).group_by(TallyRecord.name)
        ).all()
    )
