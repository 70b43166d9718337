"""API keys: made, verified, listed, changed, revoked."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.orm import Session

from fedcore.errors import AuthenticationError, ResourceNotFoundError, StateConflictError
from fedcore.platform.access import Principal, Scope, Token, prefix_of
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.records import RecordPage, get_by_id, make_ids, read_newest
from fedcore.platform.store.tables import KeyRecord

USE_NOTED_S = 60.0
"""The last use of a key is written at most this often: reading must not cost a write each time."""


def create(
    session: Session,
    /,
    *,
    owner: str,
    scope: Scope,
    name: str = "",
    **terms: Any,
) -> tuple[KeyRecord, Token]:
    """Create a key; its text, returned with it, cannot be read again.

    `terms` are further columns: expiry, quotas, and the scope `code`.
    """
    moment = session.scalars(select(sql_now())).one()
    (key_id,) = make_ids("key", moment, 1)
    token = Token.of(key_id)
    record = KeyRecord(
        id=key_id,
        name=name,
        owner=owner,
        scope=scope,
        digest=token.digest,
        created_at=moment,
        **terms,
    )
    session.add(record)
    session.flush()
    return record, token


def find(session: Session, key_id: str) -> KeyRecord:
    """The key with this id; raises ResourceNotFoundError."""
    record = get_by_id(session, KeyRecord, key_id)
    if record is None:
        raise ResourceNotFoundError(f"there is no key {key_id!r}")
    return record


def verify(session: Session, token: Token) -> tuple[KeyRecord, bool]:
    """Verify a token; return its key, and True if its use is to be recorded. Raises
    AuthenticationError.
    """
    long_ago = or_(KeyRecord.last_used_at.is_(None), KeyRecord.last_used_at < sql_now(-USE_NOTED_S))
    row = session.execute(select(KeyRecord, _expired(), long_ago).where(KeyRecord.id == token.key_id)).first()
    if row is None or not token.matches(row[0].digest):
        raise AuthenticationError(f"the API key {prefix_of(token.key_id)}... is unknown")
    record, expired, to_note = row
    if record.revoked_at is not None:
        raise AuthenticationError(
            f"the API key {record.prefix}... was revoked at {record.revoked_at.isoformat()}"
        )
    if expired and record.expires_at is not None:
        raise AuthenticationError(
            f"the API key {record.prefix}... expired at {record.expires_at.isoformat()}"
        )
    return record, bool(to_note)


def note_use(session: Session, key_id: str) -> None:
    """Record that the key was used just now."""
    session.execute(update(KeyRecord).where(KeyRecord.id == key_id).values(last_used_at=sql_now()))


def page(session: Session, *, limit: int = 50, cursor: str | None = None) -> RecordPage[KeyRecord]:
    """Keys, newest first."""
    return read_newest(session, select(KeyRecord), KeyRecord.id, limit, cursor)


def edit(session: Session, key_id: str, changes: Mapping[str, Any]) -> KeyRecord:
    """Change these columns of a key.

    Raises ResourceNotFoundError, and StateConflictError for one that was revoked.
    """
    if changes:
        session.execute(
            update(KeyRecord).where(KeyRecord.id == key_id, KeyRecord.revoked_at.is_(None)).values(**changes)
        )
    record = find(session, key_id)
    if record.revoked_at is not None:
        raise StateConflictError(
            f"the key {key_id} was revoked at {record.revoked_at.isoformat()} and cannot be changed; create"
            " another"
        )
    return record


def revoke(session: Session, key_id: str) -> KeyRecord:
    """End a key, if it has not been; raises ResourceNotFoundError."""
    session.execute(
        update(KeyRecord)
        .where(KeyRecord.id == key_id, KeyRecord.revoked_at.is_(None))
        .values(revoked_at=sql_now())
    )
    return find(session, key_id)


def owners(session: Session, names: Collection[str]) -> set[str]:
    """Names in `names` that own a valid key."""
    valid = KeyRecord.owner.in_(names), KeyRecord.revoked_at.is_(None), ~_expired()
    return set(session.scalars(select(KeyRecord.owner).where(*valid)))


def opens(session: Session, *, besides: str) -> bool:
    """True if some key other than `besides` is valid."""
    valid = select(KeyRecord.id).where(KeyRecord.id != besides, KeyRecord.revoked_at.is_(None), ~_expired())
    return session.scalars(valid.limit(1)).first() is not None


def still_allows(session: Session, principal: Principal) -> bool:
    """True if the key of this principal is still valid, with the same scope."""
    same = (
        KeyRecord.id == principal.key_id,
        KeyRecord.scope == principal.scope,
        KeyRecord.code == principal.code,
    )
    return session.scalar(select(exists().where(*same, KeyRecord.revoked_at.is_(None), ~_expired()))) or False


def _expired() -> ColumnElement[bool]:
    return KeyRecord.expires_at.is_not(None) & (KeyRecord.expires_at <= sql_now())
