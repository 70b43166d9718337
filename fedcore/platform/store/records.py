"""Records of any table: read by id, inserted, and listed in pages.

Identifiers begin with the time of their creation; keyset pagination by them lists the newest first.
"""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

from sqlalchemy import Insert, Select, Table, bindparam, insert, select
from sqlalchemy.orm import InstrumentedAttribute, Session
from ulid import ULID

from fedcore.platform.store.tables import Base, Document
from fedcore.spec.parameters import Parameters

Record = TypeVar("Record")
Row = TypeVar("Row", bound=Base)


def get_by_id(session: Session, kind: type[Row], id: str) -> Row | None:
    """The row of `kind` with this id, if there is one."""
    record: Row | None = session.scalars(_by_id(kind), {"wanted": id}).first()
    return record


# To make a statement takes as long as to execute it.
@cache
def _by_id(kind: Any) -> Select[Any]:
    return select(kind).where(kind.id == bindparam("wanted"))


@cache
def insert_into(kind: type[Base]) -> Insert:
    """To be executed with a row, or several, as maps from columns to values.

    Past the ORM, which would take longer than the database.
    """
    return insert(cast("Table", kind.__table__))


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


def arm_rows(experiment_id: str, parameters: Sequence[Parameters], first: int = 0) -> list[Document]:
    """Rows of the arms of an experiment from number `first` on."""
    return [
        {"experiment_id": experiment_id, "arm": arm, "parameters": own}
        for arm, own in enumerate(parameters, first)
    ]
