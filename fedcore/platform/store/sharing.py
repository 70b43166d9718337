"""Experiments that their owners share with others, who may read them, or change them, too.

Only the owner shares and deletes an experiment. Administrators see and change everything.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, select, union_all
from sqlalchemy.orm import Session, aliased

from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import ExperimentRecord, SharedExperimentRecord


class Access(StrEnum):
    """Rights to an experiment; each includes those after it."""

    OWNER = "owner"
    """To delete and share it."""
    WRITE = "write"
    """To edit, control and extend it."""
    READ = "read"
    """To see it with all its results."""


def shared_with(owner: str) -> Select[str]:
    """Ids of the experiments of others that `owner` may read."""
    return select(SharedExperimentRecord.experiment_id).where(SharedExperimentRecord.owner == owner)


def visible_to(owner: str) -> ColumnElement[bool]:
    """Condition on experiments: those of `owner`, and those that others share with them."""
    # Two lists, each found in an index: with OR, databases read the experiments of all owners.
    own = aliased(ExperimentRecord, name="own")
    return ExperimentRecord.id.in_(select(own.id).where(own.owner == owner).union_all(shared_with(owner)))


def newest_visible(query: Select[Any], owner: str, limit: int, cursor: str | None = None) -> Select[Any]:
    """Of the experiments that `query` selects and `owner` may read, the newest `limit` or a few more,
    older than `cursor`.
    """
    # Also of an owner with very many, only the newest are read.
    ids = query.with_only_columns(ExperimentRecord.id)
    ids = ids if cursor is None else ids.where(ExperimentRecord.id < cursor)
    own = ids.where(ExperimentRecord.owner == owner)
    shared = ids.where(ExperimentRecord.id.in_(shared_with(owner)))
    parts = [part.order_by(ExperimentRecord.id.desc()).limit(limit).subquery() for part in (own, shared)]
    return query.where(ExperimentRecord.id.in_(union_all(*(select(part.c.id) for part in parts))))


def access_of(
    session: Session, experiment_id: str, experiment_owner: str, owner: str | None
) -> Access | None:
    """Rights of `owner`, None: of an administrator, to an experiment; None without any."""
    if owner in (None, experiment_owner):
        return Access.OWNER
    query = select(SharedExperimentRecord.may_change).where(
        SharedExperimentRecord.experiment_id == experiment_id, SharedExperimentRecord.owner == owner
    )
    may_change = session.scalars(query).first()
    return None if may_change is None else Access.WRITE if may_change else Access.READ


def may_read(session: Session, experiment_id: str, experiment_owner: str, owner: str | None) -> bool:
    """True if `owner`, None: an administrator, may read an experiment with its runs."""
    return access_of(session, experiment_id, experiment_owner, owner) is not None


def shares(session: Session, experiment_id: str) -> dict[str, Access]:
    """Rights of others to an experiment, by their names in alphabetical order."""
    query = (
        select(SharedExperimentRecord.owner, SharedExperimentRecord.may_change)
        .where(SharedExperimentRecord.experiment_id == experiment_id)
        .order_by(SharedExperimentRecord.owner)
    )
    found = session.execute(query).all()
    return {owner: Access.WRITE if may_change else Access.READ for owner, may_change in found}


def share(
    session: Session,
    experiment_id: str,
    *,
    read: Sequence[str] | None = None,
    write: Sequence[str] | None = None,
) -> dict[str, Access]:
    """Replace the users who may read, and those who may change; None: unchanged.

    Returns the rights of all. A name in both may change the experiment.
    """
    # Two that share at the same time wait for each other.
    session.scalars(
        select(ExperimentRecord.id).where(ExperimentRecord.id == experiment_id).with_for_update()
    ).first()
    before = shares(session, experiment_id).items()
    readers = [owner for owner, access in before if access is Access.READ] if read is None else read
    writers = [owner for owner, access in before if access is Access.WRITE] if write is None else write
    rights = dict.fromkeys(readers, Access.READ) | dict.fromkeys(writers, Access.WRITE)
    session.execute(
        delete(SharedExperimentRecord).where(SharedExperimentRecord.experiment_id == experiment_id)
    )
    rows = [
        {"experiment_id": experiment_id, "owner": owner, "may_change": access is Access.WRITE}
        for owner, access in rights.items()
    ]
    if rows:
        session.execute(insert_into(SharedExperimentRecord), rows)
    return shares(session, experiment_id)
