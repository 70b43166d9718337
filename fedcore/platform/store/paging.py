"""Listings in parts: newest first, since an id begins with the time of its creation."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute, Session

Record = TypeVar("Record")


class Page(NamedTuple, Generic[Record]):
    """A part of a listing, newest first."""

    items: Sequence[Record]
    next: str | None
    """The cursor of the next page; None on the last."""


def newest(session: Session, query: Select[Record], id: InstrumentedAttribute[str], limit: int, cursor: str | None) -> Page[Record]:
    """The first `limit` of what `query` selects, or those after `cursor`; `id` is the key of its records."""
    older = query if cursor is None else query.where(id < cursor)
    # One more than wanted tells whether there is a next page.
    found = session.execute(older.add_columns(id).order_by(id.desc()).limit(limit + 1)).all()
    return Page([row[0] for row in found[:limit]], found[limit - 1][1] if len(found) > limit else None)
