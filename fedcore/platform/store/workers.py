"""Workers: presence, and what each is doing."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from fedcore.platform.store import counters, fair_share
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.idempotency import dialect_of
from fedcore.platform.store.leases import ANY_MEMORY
from fedcore.platform.store.tables import WorkerRecord


def seen(session: Session, /, worker_id: str, **reported: Any) -> None:
    """Record that a worker is present, with the columns of `WorkerRecord` that it has `reported`."""
    present = reported | {"seen_at": sql_now()}
    first = dialect_of(session).insert(WorkerRecord).values(id=worker_id, started_at=sql_now(), **present)
    session.execute(first.on_conflict_do_update(index_elements=[WorkerRecord.id], set_=present))


def gone(session: Session, worker_id: str) -> None:
    """Remove a worker that ends."""
    session.execute(delete(WorkerRecord).where(WorkerRecord.id == worker_id))
    counters.archive(session, [worker_id])
    fair_share.archive(session, [worker_id])


def alive(session: Session, within_s: float) -> Sequence[WorkerRecord]:
    """The workers that were seen in the last `within_s` seconds, by id."""
    return session.scalars(
        select(WorkerRecord).where(WorkerRecord.seen_at > sql_now(-within_s)).order_by(WorkerRecord.id)
    ).all()


def memory_limits(session: Session, within_s: float, *, idle_only: bool = False) -> dict[str, int]:
    """Memory that a run of each queue may take at most, on the workers that were seen in the last
    `within_s` seconds, or on the idle ones among them.
    """
    found: dict[str, int] = {}
    for worker in alive(session, within_s):
        for queue in () if idle_only and worker.run_id else worker.queues:
            found[queue] = max(
                ANY_MEMORY if worker.memory_bytes is None else worker.memory_bytes, found.get(queue, 0)
            )
    return found


def forget(session: Session, older_than_s: float) -> int:
    """Remove the workers that were not seen for `older_than_s` seconds; returns how many."""
    dropped = (
        delete(WorkerRecord).where(WorkerRecord.seen_at < sql_now(-older_than_s)).returning(WorkerRecord.id)
    )
    ids = session.scalars(dropped).all()
    if ids:
        counters.archive(session, ids)
        fair_share.archive(session, ids)
    return len(ids)
