"""Bundles of user code: kept once for each owner, found, listed, used, and deleted with their last
use.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete as delete_from
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from fedcore.bundles import storage_key
from fedcore.errors import ResourceNotFoundError, SpecificationError, StateConflictError
from fedcore.platform.store import removals
from fedcore.platform.store.clock import database_time, sql_now
from fedcore.platform.store.idempotency import dialect_of
from fedcore.platform.store.records import RecordPage, identifiers, newest
from fedcore.platform.store.tables import BundleRecord, BundleUseRecord
from fedcore.spec.code import CodeBundle

UNUSED_S = 86_400.0
"""After this time a bundle that no experiment ever used is deleted."""


def new_id(session: Session) -> str:
    """An id for a bundle that is about to be stored."""
    return identifiers("cod", database_time(session), 1)[0]


def create(
    session: Session,
    bundle_id: str,
    digest: str,
    *,
    files: Sequence[Mapping[str, Any]],
    components: Mapping[str, Sequence[str]],
    size_bytes: int,
    owner: str,
    key_id: str,
) -> BundleRecord:
    """Store a bundle; if its owner has one of the same content, that one is returned instead."""
    upsert = (
        dialect_of(session)
        .insert(BundleRecord)
        .values(
            id=bundle_id,
            owner=owner,
            digest=digest,
            files=[dict(file) for file in files],
            components={family: list(kinds) for family, kinds in components.items()},
            size_bytes=size_bytes,
            created_at=sql_now(),
            key_id=key_id,
        )
        # The update that changes nothing locks the row, so that it is not deleted before the answer.
        .on_conflict_do_update(index_elements=["owner", "digest"], set_={"digest": digest})
        .returning(BundleRecord.id)
    )
    kept = session.scalars(upsert).one()
    return session.scalars(select(BundleRecord).where(BundleRecord.id == kept)).one()


def find(session: Session, digest: str, owner: str | None = None) -> BundleRecord:
    """The bundle with this digest, if it is `owner`'s where one is given; raises ResourceNotFoundError."""
    query = select(BundleRecord).where(BundleRecord.digest == digest).order_by(BundleRecord.id).limit(1)
    record = session.scalars(query if owner is None else query.where(BundleRecord.owner == owner)).first()
    if record is None:
        raise ResourceNotFoundError(f"there is no code bundle {digest!r}")
    return record


def page(
    session: Session, *, owner: str | None = None, limit: int = 50, cursor: str | None = None
) -> RecordPage[BundleRecord]:
    """Bundles, of `owner` where one is given, newest first."""
    query = select(BundleRecord)
    query = query if owner is None else query.where(BundleRecord.owner == owner)
    return newest(session, query, BundleRecord.id, limit, cursor)


def use(session: Session, experiment_id: str, code: CodeBundle) -> None:
    """Record that an experiment uses its bundle, which keeps the bundle as long as the experiment.

    Raises SpecificationError if the bundle does not exist.
    """
    locked = select(BundleRecord.id).where(BundleRecord.id == code.id, BundleRecord.digest == code.digest)
    if session.scalars(locked.with_for_update(read=True, key_share=True)).first() is None:
        raise unknown(code.digest)
    noted = dialect_of(session).insert(BundleUseRecord).on_conflict_do_nothing()
    session.execute(noted, [{"bundle_id": code.id, "experiment_id": experiment_id}])


def delete(session: Session, digest: str, owner: str | None = None) -> None:
    """Remove a bundle that no experiment uses.

    Raises ResourceNotFoundError, and StateConflictError if an experiment uses it. Its file is removed later.
    """
    record = find(session, digest, owner)
    session.scalars(select(BundleRecord.id).where(BundleRecord.id == record.id).with_for_update()).first()
    user = session.scalars(
        select(BundleUseRecord.experiment_id).where(BundleUseRecord.bundle_id == record.id).limit(1)
    ).first()
    if user is not None:
        raise StateConflictError(
            f"code bundle {digest} is used by {user}; it is deleted with the last experiment that uses it"
        )
    _remove(session, record)


def release(session: Session, experiment_id: str) -> None:
    """Remove the bundle of an experiment that is about to be deleted, unless others use it."""
    query = (
        select(BundleRecord)
        .join(BundleUseRecord, BundleUseRecord.bundle_id == BundleRecord.id)
        .where(BundleUseRecord.experiment_id == experiment_id)
        .with_for_update(of=BundleRecord)
    )
    for record in session.scalars(query).all():
        others = BundleUseRecord.bundle_id == record.id, BundleUseRecord.experiment_id != experiment_id
        if not session.scalar(select(exists().where(*others))):
            _remove(session, record)


def prune(session: Session, older_than_s: float = UNUSED_S) -> int:
    """Remove old bundles that no experiment uses; returns how many."""
    unused = ~exists().where(BundleUseRecord.bundle_id == BundleRecord.id)
    query = select(BundleRecord).where(BundleRecord.created_at < sql_now(-older_than_s), unused)
    records = session.scalars(query.with_for_update(skip_locked=True)).all()
    for record in records:
        _remove(session, record)
    return len(records)


def unknown(digest: str) -> SpecificationError:
    """The error of a specification that names a bundle that does not exist."""
    return SpecificationError(
        "/code", f"there is no code bundle {digest!r}; send it by POST /v1/bundles or `fedq submit --code`"
    )


def _remove(session: Session, record: BundleRecord) -> None:
    session.execute(delete_from(BundleRecord).where(BundleRecord.id == record.id))
    removals.note(session, storage_key(record.id, record.digest))
