"""Users' own data sets: kept once for each owner, found, listed, used and deleted.

Whatever finds one for use takes the owner for whom it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete as delete_from
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from fedcore.data.description import UploadedContent
from fedcore.data.uploaded import Uploaded, uploads_in
from fedcore.errors import ResourceNotFoundError, SpecificationError, StateConflictError
from fedcore.platform.access import LOCAL
from fedcore.platform.status import ENDED
from fedcore.platform.store import removals, sharing
from fedcore.platform.store.clock import database_time, sql_now
from fedcore.platform.store.idempotency import claim_key, dialect_of
from fedcore.platform.store.records import RecordPage, get_by_id, identifiers, newest
from fedcore.platform.store.tables import (
    DatasetKeyRecord,
    DatasetRecord,
    DatasetUseRecord,
    Document,
    ExperimentRecord,
)
from fedcore.platform.uploads import dataset_storage

if TYPE_CHECKING:
    from fedcore.spec import Arm


def new_id(session: Session) -> str:
    """An id for a data set that is about to be stored."""
    return identifiers("set", database_time(session), 1)[0]


def create(
    session: Session,
    dataset_id: str,
    content: UploadedContent,
    *,
    name: str,
    client_sizes: Mapping[str, Any],
    size_bytes: int,
    owner: str = LOCAL,
    idempotency_key: str | None = None,
) -> DatasetRecord:
    """Store a data set.

    If its `owner` has one of the same content, that one is returned instead, under its own id and
    name.

    Raises IdempotencyError when `owner` has used the key for another content or name.
    """
    upsert = (
        dialect_of(session)
        .insert(DatasetRecord)
        .values(
            id=dataset_id,
            name=name,
            owner=owner,
            digest=content.digest,
            content=content.model_dump(mode="json"),
            client_sizes=dict(client_sizes),
            size_bytes=size_bytes,
            created_at=sql_now(),
        )
        # The update that changes nothing locks what is there, so that it cannot be deleted before
        # it is answered with.
        .on_conflict_do_update(index_elements=["owner", "digest"], set_={"digest": content.digest})
        .returning(DatasetRecord.id)
    )
    kept = session.scalars(upsert).one()
    if idempotency_key is not None:
        request_hash = hashlib.sha256(f"{content.digest} {name}".encode()).hexdigest()
        claim_key(
            session, DatasetKeyRecord.dataset_id, owner, idempotency_key, request_hash, kept, request="upload"
        )
    return find(session, kept, owner)


def find(session: Session, dataset_id: str, owner: str | None) -> DatasetRecord:
    """The data set with this id, if `owner`, None: an administrator, may read it; raises
    ResourceNotFoundError.
    """
    record = get_by_id(session, DatasetRecord, dataset_id)
    if record is None or not sharing.may_read(session, dataset_id, record.owner, owner):
        raise ResourceNotFoundError(f"there is no data set {dataset_id!r}")
    return record


def find_same(session: Session, dataset_id: str, digest: str, owner: str | None, own: str) -> DatasetRecord:
    """The data set with this id or else this digest that `owner`, None: an administrator, may read; of
    several the one of `own`, or else the oldest. The id of another service is unknown here.

    Raises ResourceNotFoundError.
    """
    readable = sharing.visible_to(DatasetRecord, owner)
    query = select(DatasetRecord).where(
        or_(DatasetRecord.id == dataset_id, DatasetRecord.digest == digest), readable
    )
    first = DatasetRecord.id != dataset_id, DatasetRecord.owner != own, DatasetRecord.id
    found = session.scalars(query.order_by(*first).limit(1)).first()
    if found is None:
        raise ResourceNotFoundError(f"there is no data set {dataset_id!r}, and none of its content")
    return found


def page(
    session: Session, owner: str | None, *, limit: int = 50, cursor: str | None = None
) -> RecordPage[DatasetRecord]:
    """Data sets that `owner`, None: an administrator, may read, newest first."""
    query = select(DatasetRecord).where(sharing.visible_to(DatasetRecord, owner))
    return newest(session, query, DatasetRecord.id, limit, cursor)


def delete(session: Session, dataset_id: str, owner: str | None) -> None:
    """Remove a data set of `owner`, None: of anyone, for an administrator.

    Raises ResourceNotFoundError, ForbiddenError for one that is only shared with `owner`, and
    StateConflictError while an unfinished experiment of its owner trains on it. Those of others do
    not keep it: their runs fail.

    Its file is removed later.
    """
    record = find(session, dataset_id, owner)
    sharing.require_owner(record, owner, dataset_id)
    # A concurrent submission that uses it holds the row until its experiment is visible below.
    found = select(DatasetRecord.digest).where(DatasetRecord.id == dataset_id)
    digest = session.scalars(found.with_for_update()).first()
    if digest is None:
        raise ResourceNotFoundError(f"there is no data set {dataset_id!r}")
    unfinished = (
        select(ExperimentRecord.id)
        .join(DatasetUseRecord, DatasetUseRecord.experiment_id == ExperimentRecord.id)
        .where(
            DatasetUseRecord.dataset_id == dataset_id,
            ExperimentRecord.owner == record.owner,
            ExperimentRecord.status.not_in(ENDED),
        )
        .order_by(ExperimentRecord.id)
    )
    user = session.scalars(unfinished.limit(1)).first()
    if user is not None:
        raise StateConflictError(
            f"data set {dataset_id} is in use by {user}, which is unfinished; cancel it or wait for it"
        )
    session.execute(delete_from(DatasetRecord).where(DatasetRecord.id == dataset_id))
    sharing.end(session, dataset_id)
    removals.note(session, dataset_storage.storage_key(dataset_id, digest))


def check_use(
    session: Session, document: Document, arms: Iterable[Arm], owner: str | None, *, lock: bool = False
) -> list[str]:
    """Check that `owner`, None: an administrator, may read all data sets that a specification names, in
    its arms or anywhere else in its `document`; with `lock`, lock them.

    Returns their ids. Raises SpecificationError for one that is not there, or is not what the
    specification says.
    """
    # Workers give a code bundle what stands anywhere in the document. An arm may be composed of its
    # parts.
    trained = (arm.spec.problem.dataset for arm in arms)
    uploaded = {*uploads_in(document), *(dataset for dataset in trained if isinstance(dataset, Uploaded))}
    if not uploaded:
        return []
    ids = sorted({dataset.id for dataset in uploaded if dataset.id is not None})
    query = select(DatasetRecord).where(DatasetRecord.id.in_(ids), sharing.visible_to(DatasetRecord, owner))
    if lock:
        query = query.order_by(DatasetRecord.id).with_for_update(read=True, key_share=True)
    known = {record.id: UploadedContent.model_validate(record.content) for record in session.scalars(query)}
    for dataset in uploaded:
        if dataset.id is None:
            raise SpecificationError(
                "/problem/dataset/id", "required: upload the data set, and give the id that this returns"
            )
        if dataset.id not in known:
            raise unknown("/problem/dataset/id", dataset.id)
        if not _describes(dataset.content, known[dataset.id]):
            raise SpecificationError(
                "/problem/dataset/content",
                f"does not match {dataset.id}; omit it, or sweep `problem.dataset`",
            )
    return ids


def _describes(given: UploadedContent | None, known: UploadedContent) -> bool:
    """True if `given` is the content `known`, whose description may be left out."""
    unnamed = known.model_copy(update={"description": None})
    return given in (known, unnamed)


def use(
    session: Session, experiment_id: str, document: Document, arms: Iterable[Arm], owner: str | None
) -> None:
    """Note, once, the data sets of an experiment, after `check_use`: if they are of the same owner, it
    keeps them from being deleted before it ends.

    Data sets are locked before what is noted of them, as in `delete`.
    """
    ids = check_use(session, document, arms, owner, lock=True)
    if ids:
        noted = dialect_of(session).insert(DatasetUseRecord).on_conflict_do_nothing()
        session.execute(noted, [{"dataset_id": id, "experiment_id": experiment_id} for id in ids])


def unknown(pointer: str, dataset_id: str) -> SpecificationError:
    """The error of a specification that names a data set that is not there, or that its owner may not
    read.
    """
    return SpecificationError(
        pointer,
        f"there is no data set {dataset_id!r} among yours and those that are shared with you, and none of the"
        " same content: upload it, and give the id that this returns or the digest in `content`",
    )
