"""Statements that are made once: to make one takes as long as to execute it."""

from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import Insert, Select, Table, bindparam, insert, select
from sqlalchemy.orm import Session

from fedcore.platform.store.tables import Base

Record = TypeVar("Record", bound=Base)


def get_by_id(session: Session, kind: type[Record], id: str) -> Record | None:
    """The row of `kind` with this id, if there is one."""
    record: Record | None = session.scalars(_by_id(kind), {"wanted": id}).first()
    return record


@cache
def insert_into(kind: type[Base]) -> Insert:
    """To be executed with a row, or several, as maps from columns to values.

    Past the ORM, which would take longer than the database.
    """
    return insert(cast("Table", kind.__table__))


@cache
def _by_id(kind: Any) -> Select[Any]:
    return select(kind).where(kind.id == bindparam("wanted"))
