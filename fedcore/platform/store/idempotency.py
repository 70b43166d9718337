"""Idempotency keys: of requests that carry the same one, only the first makes something."""

from functools import cache
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.dml import ReturningInsert

from fedcore.errors import IdempotencyError
from fedcore.platform.store.clock import sql_now


def dialect_of(session: Session) -> Any:
    """The dialect whose `insert` knows what to do on a conflict."""
    return postgresql if session.get_bind().dialect.name == "postgresql" else sqlite


def claim_key(
    session: Session,
    made: InstrumentedAttribute[str],
    principal: str,
    key: str,
    request_hash: str,
    id: str,
    *,
    request: str,
) -> str:
    """Take `key` for `id`, written to the column `made` of its table.

    The id of what has it already, if something has.

    Raises IdempotencyError when another `request`, as the message calls it, has used the key.
    """
    values = {
        "principal": principal,
        "key": key,
        "request_hash": request_hash,
        made.key: id,
    }
    known_hash, known_id = session.execute(_claim(made, dialect_of(session)), values).one()
    return _same(key, request_hash, known_hash, known_id, request)


def find_made(
    session: Session,
    made: InstrumentedAttribute[str],
    principal: str,
    key: str,
    request_hash: str,
    *,
    request: str,
) -> str | None:
    """The id of what has `key`, for a request that was made before; None for a new one.

    Raises IdempotencyError as `claim_key`.
    """
    table = made.class_.__table__
    known = select(table.c.request_hash, table.c[made.key]).where(
        table.c.principal == principal, table.c.key == key
    )
    found = session.execute(known.with_for_update()).first()
    if found is None:
        return None
    known_hash, known_id = found
    return _same(key, request_hash, known_hash, known_id, request)


def _same(key: str, request_hash: str, known_hash: str, known_id: str, request: str) -> str:
    if known_hash != request_hash:
        raise IdempotencyError(
            f"the idempotency key {key!r} was already used for another {request}, which created {known_id};"
            " use a new key"
        )
    return known_id


@cache
def _claim(made: InstrumentedAttribute[str], dialect: Any) -> ReturningInsert[str, str]:
    """To be executed with the values of a row.

    Returns the hash of the request that has the key, and what it made.
    """
    table = made.class_.__table__
    insert = dialect.insert(table).values(created_at=sql_now())
    # Of two requests at once the second waits here until the first has committed. The update that
    # changes nothing locks the key that is there, so that what it made cannot be deleted before it
    # is answered with.
    unchanged = insert.on_conflict_do_update(
        index_elements=["principal", "key"], set_={"key": insert.excluded.key}
    )
    claim: ReturningInsert[str, str] = unchanged.returning(table.c.request_hash, table.c[made.key])
    return claim
