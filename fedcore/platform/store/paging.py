"""Identifiers that begin with the time of their creation, and keyset pagination by them, newest
first.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

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


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = 26
_RANDOM_BITS = 80


def identifiers(prefix: str, moment: datetime, count: int) -> list[str]:
    """`count` new identifiers of `moment`, in ascending order."""
    # One random number and its successors, so that identifiers made together keep their order; 79
    # bits leave room to count.
    first = (_milliseconds(moment) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
    return [f"{prefix}_{_encode(first + index)}" for index in range(count)]


def floor(prefix: str, moment: datetime) -> str:
    """The least identifier that one of `moment` can have.

    For moments before 1970, the least of all.
    """
    return f"{prefix}_{_encode(_milliseconds(moment) << _RANDOM_BITS)}"


def _milliseconds(moment: datetime) -> int:
    # The digits of a negative number would be those of its complement, and sort after all others.
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def _encode(number: int) -> str:
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(5 * (_LENGTH - 1), -1, -5))
