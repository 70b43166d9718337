"""The audit log: changes, and refused attempts.

Entries are only added; old ones are removed if the operator says so.
"""

from dataclasses import asdict, dataclass
from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from fedcore.platform.store.clock import database_time
from fedcore.platform.store.records import RecordPage, insert_into, make_ids, make_least_id, read_newest
from fedcore.platform.store.tables import AuditRecord


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """Who does something, how, and from where."""

    action: str
    """Method and path of the endpoint, or a command."""
    status: int
    """HTTP status of the response."""
    owner: str
    """Owner of the key."""
    key_id: str
    """Key id; empty for direct writes to the database."""
    address: str
    """Network address of the client, or the host."""
    request_id: str = ""
    """Id of the request in the log."""


def record(session: Session, facts: AuditFacts, target: str) -> None:
    """Add an entry: of a change, in the transaction that makes it.

    `target` is the id of the created, changed or deleted resource; empty if there is none.
    """
    at = database_time(session)
    (id,) = make_ids("aud", at, 1)
    session.execute(insert_into(AuditRecord), {"id": id, "at": at, "target": target, **asdict(facts)})


def prune(session: Session, older_than_s: float, limit: int = 1_000) -> int:
    """Remove the oldest `limit` entries, at most, of those older than `older_than_s` seconds.

    Returns how many.
    """
    first_kept = make_least_id("aud", database_time(session) - timedelta(seconds=older_than_s))
    old = select(AuditRecord.id).where(AuditRecord.id < first_kept).order_by(AuditRecord.id).limit(limit)
    # Several reconcilers may do so at once: what another is just removing is left to it.
    ids = session.scalars(old.with_for_update(skip_locked=True)).all()
    if ids:
        session.execute(delete(AuditRecord).where(AuditRecord.id.in_(ids)))
    return len(ids)


def page(
    session: Session,
    *,
    owner: str | None = None,
    target: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> RecordPage[AuditRecord]:
    """Entries, newest first; where they are given, entries of what `owner` did, or of what was done
    to `target`.
    """
    query = select(AuditRecord)
    query = query if owner is None else query.where(AuditRecord.owner == owner)
    query = query if target is None else query.where(AuditRecord.target == target)
    return read_newest(session, query, AuditRecord.id, limit, cursor)
