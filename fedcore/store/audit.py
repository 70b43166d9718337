"""The audit log: who changed what, or tried to; it is only ever added to."""

from dataclasses import asdict, dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.store.clock import moment
from fedcore.store.identifier import identifiers
from fedcore.store.paging import Page, newest
from fedcore.store.statements import insert_into
from fedcore.store.tables import AuditRecord


@dataclass(frozen=True, slots=True)
class Deed:
    """A change, or an attempt at one."""

    action: str
    """Method and path, as the interface has them, or a command."""
    target: str
    """The id of what was made, changed or deleted; empty where nothing came of it."""
    status: int
    """How it was answered: an HTTP status."""
    owner: str
    """Who did it: the owner of the key."""
    key_id: str
    """With which key; empty for whoever wrote to the database directly."""
    address: str
    """From where."""
    request_id: str = ""
    """Under which id the log has the request."""


def record(session: Session, deed: Deed) -> None:
    """Note `deed`: of a change, in the transaction that makes it."""
    at = moment(session)
    (audit_id,) = identifiers("aud", at, 1)
    session.execute(insert_into(AuditRecord), {"id": audit_id, "at": at, **asdict(deed)})


def page(
    session: Session, *, owner: str | None = None, target: str | None = None, limit: int = 50, cursor: str | None = None
) -> Page[AuditRecord]:
    """Entries, newest first: those of what `owner` did, or of what was done to `target`, where they are given."""
    query = select(AuditRecord)
    query = query if owner is None else query.where(AuditRecord.owner == owner)
    query = query if target is None else query.where(AuditRecord.target == target)
    return newest(session, query, AuditRecord.id, limit, cursor)
