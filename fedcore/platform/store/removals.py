"""Files to be removed: recorded in the transaction that deletes their rows, removed by the
reconciler.

A reconciler leases some at a time. Those it has not removed when the lease expires are due again,
so no file stays because a process was killed or the storage was away. Removing files twice is
harmless: no run and no data set gets the path of an earlier one.
"""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import delete, func, insert, literal, select
from sqlalchemy.orm import Session

from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.leases import REMOVALS, Lease
from fedcore.platform.store.tables import RemovalRecord, RunRecord

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 3_600.0
"""Pause between two attempts, doubled after each failure."""


def note(session: Session, path: str) -> None:
    """Have the file at `path` removed; all files below it if it ends in a slash."""
    session.execute(insert(RemovalRecord).values(path=path, due_at=sql_now(), failures=0))


def note_runs(session: Session, experiment_id: str) -> None:
    """Have the files of the runs of an experiment removed, which are locked and about to be
    deleted.
    """
    # A worker may write until its lease is over. A run that no worker ever held has no files.
    due_at = func.coalesce(RunRecord.lease_until, sql_now())
    held = RunRecord.experiment_id == experiment_id, RunRecord.fence > 0
    chosen = select(RunRecord.id + literal("/"), due_at, literal(0)).where(*held)
    session.execute(insert(RemovalRecord).from_select(["path", "due_at", "failures"], chosen))


def any_due(session: Session) -> bool:
    """True if a removal is due."""
    return session.scalar(select(RemovalRecord.path).where(*REMOVALS.free()).limit(1)) is not None


def take(session: Session, limit: int, lease_s: float) -> Sequence[tuple[str, int]]:
    """Claim for `lease_s` seconds the paths that have been due longest, at most `limit`; return
    them with their failures.
    """
    query = select(RemovalRecord.path, RemovalRecord.failures)
    oldest = query.order_by(RemovalRecord.due_at, RemovalRecord.path).limit(limit)
    claimed = [(path, failures) for path, failures in session.execute(REMOVALS.lock_free(oldest))]
    for path, _ in claimed:
        REMOVALS.claim(session, path, lease_s)
    return claimed


def conclude(session: Session, removed: Collection[str], failed: Mapping[str, int]) -> None:
    """Delete the records of `removed` paths.

    Paths that failed, given with their earlier failures, are due after a pause.
    """
    session.execute(delete(RemovalRecord).where(RemovalRecord.path.in_(removed)))
    for path, failures in failed.items():
        # No power of two that is out of range.
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 32))
        REMOVALS.renew(session, Lease(path), pause_s, failures=failures + 1)
