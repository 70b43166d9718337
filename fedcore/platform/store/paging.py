"""Identifiers that begin with the time of their creation, and keyset pagination by them, newest
first.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session
from ulid import ULID

Record = TypeVar("Record")


class RecordPage(NamedTuple, Generic[Record]):
    """A part of a listing, newest first."""

    items: Sequence[Record]
    next: str | None
    """The cursor of the next page; None on the last."""


def newest(
    session: Session, query: Select[Record], id: InstrumentedAttribute[str], limit: int, cursor: str | None
) -> RecordPage[Record]:
    """The first `limit` of what `query` selects, or those after `cursor`.

    `id` is the key of its records.
    """
    older = query if cursor is None else query.where(id < cursor)
    # One more than wanted tells whether there is a next page.
    found = session.execute(older.add_columns(id).order_by(id.desc()).limit(limit + 1)).all()
    return RecordPage([row[0] for row in found[:limit]], found[limit - 1][1] if len(found) > limit else None)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RANDOM_BITS = 80


def identifiers(prefix: str, moment: datetime, count: int) -> list[str]:
    """Return `count` new identifiers of `moment`, in ascending order: a prefix and a ULID each."""
    # One random number and its successors, so that identifiers made together keep their order; 79
    # bits leave room to count.
    first = (_milliseconds(moment) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
    return [f"{prefix}_{_ulid(first + index)}" for index in range(count)]


def floor(prefix: str, moment: datetime) -> str:
    """Return the least identifier that one of `moment` can have.

    For moments before 1970, the least of all.
    """
    return f"{prefix}_{_ulid(_milliseconds(moment) << _RANDOM_BITS)}"


def _milliseconds(moment: datetime) -> int:
    # A ULID has no negative time.
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def _ulid(number: int) -> str:
    return str(ULID.from_int(number)).lower()
