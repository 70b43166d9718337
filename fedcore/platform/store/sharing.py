"""Access of users to what others own: experiments, which may be changed, too, and uploads (data sets,
code bundles, files of pretrained networks), which may be used in experiments.

Only the owner shares and deletes. Administrators see and change everything.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, select, true, union_all
from sqlalchemy.orm import Session, aliased

from fedcore.errors import ForbiddenError, ResourceNotFoundError
from fedcore.platform.store import keys
from fedcore.platform.store.records import insert_into
from fedcore.platform.store.tables import ExperimentRecord, GrantRecord, UploadRecord

Owned = ExperimentRecord | UploadRecord


class Access(StrEnum):
    """Rights to an experiment or an upload; each includes those after it."""

    OWNER = "owner"
    """May delete and share it."""
    WRITE = "write"
    """May edit, control and extend it; of experiments only."""
    READ = "read"
    """May see it: an experiment with all its results; an upload, which may be used, too."""


def shared_with(owner: str) -> Select[str]:
    """Ids of the resources of others, of all kinds, that `owner` may read."""
    return select(GrantRecord.resource_id).where(GrantRecord.grantee == owner)


def visible_to(kind: type[Owned], owner: str | None) -> ColumnElement[bool]:
    """Condition on records of `kind` that `owner` may read: their own, and records that others
    share with them; all, if `owner` is None.
    """
    if owner is None:
        return true()
    # Two lists, each found in an index: with OR, databases read the records of all owners.
    own = aliased(kind, name="own")
    return kind.id.in_(select(own.id).where(own.owner == owner).union_all(shared_with(owner)))


def is_shared(kind: type[Owned]) -> ColumnElement[bool]:
    """Condition on records of `kind`: others may read them."""
    return exists().where(GrantRecord.resource_id == kind.id)


def newest_visible(query: Select[Any], owner: str, limit: int, cursor: str | None = None) -> Select[Any]:
    """Select the newest `limit` or a few more of the experiments that `query` selects and `owner`
    may read, older than `cursor`.
    """
    # Also of an owner with very many, only the newest are read.
    ids = query.with_only_columns(ExperimentRecord.id)
    ids = ids if cursor is None else ids.where(ExperimentRecord.id < cursor)
    own = ids.where(ExperimentRecord.owner == owner)
    shared = ids.where(ExperimentRecord.id.in_(shared_with(owner)))
    parts = [part.order_by(ExperimentRecord.id.desc()).limit(limit).subquery() for part in (own, shared)]
    return query.where(ExperimentRecord.id.in_(union_all(*(select(part.c.id) for part in parts))))


def access_of(session: Session, resource_id: str, resource_owner: str, owner: str | None) -> Access | None:
    """Rights of `owner` (None: an administrator) to an experiment or an upload; None if there are
    none.
    """
    if owner in (None, resource_owner):
        return Access.OWNER
    query = select(GrantRecord.may_change).where(
        GrantRecord.resource_id == resource_id, GrantRecord.grantee == owner
    )
    may_change = session.scalars(query).first()
    return None if may_change is None else Access.WRITE if may_change else Access.READ


def may_read(session: Session, resource_id: str, resource_owner: str, owner: str | None) -> bool:
    """True if `owner`, None: an administrator, may read an experiment with its runs, or an upload."""
    return access_of(session, resource_id, resource_owner, owner) is not None


def require_owner(record: Owned, owner: str | None, name: str) -> None:
    """Raise ForbiddenError unless `owner` owns the record or is None: an administrator.

    `name` is the id or digest that users know it by.
    """
    if owner not in (None, record.owner):
        raise ForbiddenError(f"only its owner, {record.owner}, deletes and shares {name}")


def shares(session: Session, resource_id: str) -> dict[str, Access]:
    """Rights of others to a resource, by their names in alphabetical order."""
    query = (
        select(GrantRecord.grantee, GrantRecord.may_change)
        .where(GrantRecord.resource_id == resource_id)
        .order_by(GrantRecord.grantee)
    )
    found = session.execute(query).all()
    return {grantee: Access.WRITE if may_change else Access.READ for grantee, may_change in found}


def share(
    session: Session, record: Owned, *, read: Sequence[str] | None = None, write: Sequence[str] | None = None
) -> dict[str, Access]:
    """Replace the users who may read, and those who may change; None: unchanged, except that a name in
    the other has the right of that one.

    Returns the rights of all. A name given in both may change the resource. Raises ResourceNotFoundError if
    it was deleted meanwhile.
    """
    # Two that share at the same time wait for each other.
    kind = type(record)
    locked = select(kind.id).where(kind.id == record.id).with_for_update()
    if session.scalars(locked).first() is None:
        raise ResourceNotFoundError(f"{record.id} was deleted")
    before = shares(session, record.id).items()
    readers = [name for name, access in before if access is Access.READ] if read is None else read
    writers = [name for name, access in before if access is Access.WRITE] if write is None else write
    rights = dict.fromkeys(readers, Access.READ) | dict.fromkeys(writers, Access.WRITE)
    if write is None:
        rights |= dict.fromkeys(readers, Access.READ)
    end(session, record.id)
    rows = [
        {"resource_id": record.id, "grantee": grantee, "may_change": access is Access.WRITE}
        for grantee, access in rights.items()
    ]
    if rows:
        session.execute(insert_into(GrantRecord), rows)
    return shares(session, record.id)


def unknown_users(session: Session, resource_id: str, names: Collection[str]) -> set[str]:
    """Names in `names` that own no valid key and have no access to the resource yet."""
    new = set(names) - shares(session, resource_id).keys()
    return new - keys.owners(session, new)


def end(session: Session, resource_id: str) -> None:
    """Take all access of others to a resource back."""
    session.execute(delete(GrantRecord).where(GrantRecord.resource_id == resource_id))
