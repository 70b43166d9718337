"""Records of any table: read by id, found by what stands for an id, inserted, and listed in pages.

Identifiers begin with the time of their creation; keyset pagination by them lists the newest first.
"""

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, cast

from sqlalchemy import Insert, Select, Table, bindparam, insert, select
from sqlalchemy.orm import InstrumentedAttribute, Session
from ulid import ULID

from fedcore.errors import ResourceNotFoundError
from fedcore.platform.identifiers import is_id, steps_back
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


_PREFIX = re.compile(r"[a-z]+_[0-9a-z]+")
REPRODUCES = "reproduces"
"""Entry of the provenance of an experiment that reproduces another one, with its id."""
_LISTED = 5
"""Candidates that an error lists."""


def resolve(session: Session, kind: type[Any], given: str, owner: str | None, own: str) -> str:
    """Return the id of the record of `kind` that `given` stands for: an id, a name, the beginning
    of an id, or `@last`, the newest one of the owner `own`, `@last~1` the one before it. By names
    and beginnings, only records of `owner` are found, if given.

    Returns `given` if it stands for none; raises ResourceNotFoundError if it stands for several, or
    if only names begin so.
    """
    if is_id(given):
        return given
    newest_first = select(kind.id).order_by(kind.id.desc())
    if (back := steps_back(given)) is not None:
        found = newest_first.where(kind.owner == own).offset(back).limit(1)
        return session.scalars(found).first() or given
    seen = newest_first if owner is None else newest_first.where(kind.owner == owner)
    if hasattr(kind, "name") and (named := _candidates(session, seen.where(kind.name == given))):
        if len(named) > 1 and hasattr(kind, "provenance"):
            # A reproduction has the name of what it reproduces, which the name goes on to stand for.
            original = kind.provenance[REPRODUCES].as_string().is_(None)
            named = _candidates(session, seen.where(kind.name == given, original)) or named
        return _only(named, f"{given!r} is the name of several")
    if _PREFIX.fullmatch(given):
        # The range is what an index finds; a database may compare letters in an order of its own.
        between = kind.id.between(given, given + "z" * 26)
        begun = _candidates(session, seen.where(between, kind.id.startswith(given, autoescape=True)))
        if begun:
            return _only(begun, f"{given!r} is the beginning of several ids")
    if hasattr(kind, "name") and given:
        _refuse_beginnings(session, seen.with_only_columns(kind.name), kind.name, given)
    return given


def _refuse_beginnings(session: Session, names: Select[Any], name: Any, given: str) -> None:
    """Raise ResourceNotFoundError with the names that begin with `given`, if there are any."""
    begun = names.where(name.istartswith(given, autoescape=True))
    if found := list(dict.fromkeys(_candidates(session, begun)))[:_LISTED]:
        alike = ", ".join(map(repr, found))
        raise ResourceNotFoundError(f"nothing has the name {given!r}; names that begin so: {alike}")


def _candidates(session: Session, query: Select[Any]) -> Sequence[str]:
    return session.scalars(query.limit(_LISTED + 1)).all()


def _only(candidates: Sequence[str], ambiguity: str) -> str:
    if len(candidates) == 1:
        return candidates[0]
    more = ", ..." if len(candidates) > _LISTED else ""
    raise ResourceNotFoundError(f"{ambiguity}: {', '.join(candidates[:_LISTED])}{more}; give one of them")


@cache
def insert_into(kind: type[Base]) -> Insert:
    """To be executed with a row, or several, as maps from columns to values.

    Past the ORM, which would take longer than the database.
    """
    return insert(cast("Table", kind.__table__))


class RecordPage(NamedTuple, Generic[Record]):
    """A part of a listing, in its order."""

    items: Sequence[Record]
    next: str | None
    """The cursor of the next page; None on the last."""


def read_newest(
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


def make_ids(prefix: str, moment: datetime, count: int) -> list[str]:
    """Return `count` new identifiers of `moment`, in ascending order: a prefix and a ULID each."""
    # One random number and its successors, so that identifiers made together keep their order; 79
    # bits leave room to count.
    first = (_milliseconds(moment) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS - 1)
    return [f"{prefix}_{_ulid(first + index)}" for index in range(count)]


def make_least_id(prefix: str, moment: datetime) -> str:
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
