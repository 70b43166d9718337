"""Idempotency keys: of requests that carry the same one, only the first makes an experiment."""

from functools import cache
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from fedcore.errors import IdempotencyError
from fedcore.platform.store.tables import IdempotencyRecord


def dialect_of(session: Session) -> Any:
    """The dialect whose `insert` knows what to do on a conflict."""
    return postgresql if session.get_bind().dialect.name == "postgresql" else sqlite


def claim_key(session: Session, principal: str, key: str, request_hash: str, experiment_id: str) -> str:
    """Take `key` for an experiment; returns the id of the one that has it already, if one has.

    Raises IdempotencyError when another request has used the key.
    """
    values = {
        "principal": principal,
        "key": key,
        "request_hash": request_hash,
        "experiment_id": experiment_id,
    }
    known_hash, known_id = session.execute(_claim(dialect_of(session)), values).one()
    return _same(key, request_hash, known_hash, known_id)


def find_made(session: Session, principal: str, key: str, request_hash: str) -> str | None:
    """The id of the experiment that has `key`, for a request that was made before; None for a new one.

    Raises IdempotencyError as `claim_key`.
    """
    known = select(IdempotencyRecord.request_hash, IdempotencyRecord.experiment_id).where(
        IdempotencyRecord.principal == principal, IdempotencyRecord.key == key
    )
    found = session.execute(known.with_for_update()).first()
    return None if found is None else _same(key, request_hash, *found)


def _same(key: str, request_hash: str, known_hash: str, known_id: str) -> str:
    if known_hash != request_hash:
        raise IdempotencyError(
            f"the idempotency key {key!r} was already used for another request, which created {known_id};"
            " use a new key"
        )
    return known_id


@cache
def _claim(dialect: Any) -> ReturningInsert[str, str]:
    """To be executed with the values of a row.

    Returns the hash of the request that has the key, and what it made.
    """
    made = IdempotencyRecord
    insert = dialect.insert(made)
    # Of two requests at once the second waits here until the first has committed. The update that
    # changes nothing locks the key that is there, so that what it made cannot be deleted before it
    # is answered with.
    unchanged = insert.on_conflict_do_update(
        index_elements=["principal", "key"], set_={"key": insert.excluded.key}
    )
    claim: ReturningInsert[str, str] = unchanged.returning(made.request_hash, made.experiment_id)
    return claim
