"""Users' own data sets: kept once for each owner, found, listed, used and deleted."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete as delete_from
from sqlalchemy import insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from fedcore.errors import ConflictError, IdempotencyError, NotFoundError, SpecificationError
from fedcore.spec import Arm
from fedcore.spec.uploaded import Content, Uploaded
from fedcore.status import ENDED
from fedcore.store.clock import now
from fedcore.store.identifier import identifiers
from fedcore.store.tables import DatasetKeyRecord, DatasetRecord, DatasetUseRecord, ExperimentRecord


class Page(NamedTuple):
    """A part of a listing, newest first."""

    items: Sequence[DatasetRecord]
    next: str | None
    """The cursor of the next page; None on the last."""


def new_id(session: Session) -> str:
    """An id for a data set that is about to be stored."""
    return identifiers("set", session.scalars(select(now())).one(), 1)[0]


def create(
    session: Session,
    dataset_id: str,
    content: Content,
    *,
    name: str,
    client_sizes: Mapping[str, Any],
    size_bytes: int,
    owner: str = "local",
    idempotency_key: str | None = None,
) -> DatasetRecord:
    """Store a data set; if its `owner` has one of the same content, that one is returned instead, under its own id and name.

    Raises IdempotencyError when `owner` has used the key for another content or name.
    """
    upsert = (
        _dialect(session)
        .insert(DatasetRecord)
        .values(
            id=dataset_id,
            name=name,
            owner=owner,
            digest=content.digest,
            content=content.model_dump(mode="json"),
            client_sizes=dict(client_sizes),
            size_bytes=size_bytes,
            created_at=now(),
        )
        # The update that changes nothing locks what is there, so that it cannot be deleted before it is answered with.
        .on_conflict_do_update(index_elements=["owner", "digest"], set_={"digest": content.digest})
        .returning(DatasetRecord.id)
    )
    kept = session.scalars(upsert).one()
    if idempotency_key is not None:
        _claim_key(session, owner, idempotency_key, hashlib.sha256(f"{content.digest} {name}".encode()).hexdigest(), kept)
    return find(session, kept)


def find(session: Session, dataset_id: str) -> DatasetRecord:
    """The data set with this id; raises NotFoundError."""
    record = session.get(DatasetRecord, dataset_id)
    if record is None:
        raise NotFoundError(f"there is no data set {dataset_id!r}")
    return record


def page(session: Session, *, limit: int = 50, cursor: str | None = None) -> Page:
    """Data sets, newest first."""
    query = select(DatasetRecord) if cursor is None else select(DatasetRecord).where(DatasetRecord.id < cursor)
    items = session.scalars(query.order_by(DatasetRecord.id.desc()).limit(limit + 1)).all()
    return Page(items[:limit], items[limit - 1].id if len(items) > limit else None)


def delete(session: Session, dataset_id: str) -> None:
    """Remove a data set; raises NotFoundError, and ConflictError while an unfinished experiment trains on it."""
    # Whoever is just submitting an experiment on it holds the row until that is seen below.
    if session.scalars(select(DatasetRecord.id).where(DatasetRecord.id == dataset_id).with_for_update()).first() is None:
        raise NotFoundError(f"there is no data set {dataset_id!r}")
    unfinished = (
        select(ExperimentRecord.id)
        .join(DatasetUseRecord, DatasetUseRecord.experiment_id == ExperimentRecord.id)
        .where(DatasetUseRecord.dataset_id == dataset_id, ExperimentRecord.status.not_in(ENDED))
        .order_by(ExperimentRecord.id)
    )
    user = session.scalars(unfinished.limit(1)).first()
    if user is not None:
        raise ConflictError(f"data set {dataset_id} is used by {user}, which has not ended; cancel that or wait for it")
    session.execute(delete_from(DatasetRecord).where(DatasetRecord.id == dataset_id))


def use(session: Session, experiment_id: str, arms: Iterable[Arm]) -> None:
    """Note on which data sets an experiment trains, which keeps them from being deleted before it has ended.

    Raises SpecificationError for one that is not there, or is not what its arm says.
    """
    wanted = [arm.spec.problem.dataset for arm in arms]
    uploaded = {dataset for dataset in wanted if isinstance(dataset, Uploaded)}
    if not uploaded:
        return
    ids = sorted({dataset.id for dataset in uploaded if dataset.id is not None})
    locked = select(DatasetRecord).where(DatasetRecord.id.in_(ids)).order_by(DatasetRecord.id).with_for_update(read=True, key_share=True)
    known = {record.id: Content.model_validate(record.content) for record in session.scalars(locked)}
    for dataset in uploaded:
        if dataset.id is None:
            raise SpecificationError("/problem/dataset/id", "required: upload the data set by POST /v1/datasets and give its id")
        if dataset.id not in known:
            raise unknown("/problem/dataset/id", dataset.id)
        if known[dataset.id] != dataset.content:
            raise SpecificationError("/problem/dataset/content", f"is not that of {dataset.id}; leave it out, or sweep `problem.dataset`")
    session.execute(insert(DatasetUseRecord), [{"dataset_id": id, "experiment_id": experiment_id} for id in ids])


def unknown(pointer: str, dataset_id: str) -> SpecificationError:
    """The error of a specification that names a data set that is not there."""
    return SpecificationError(pointer, f"there is no data set {dataset_id!r}; GET /v1/datasets lists them, POST /v1/datasets uploads one")


def _claim_key(session: Session, principal: str, key: str, request_hash: str, dataset_id: str) -> None:
    claim = (
        _dialect(session)
        .insert(DatasetKeyRecord)
        .values(principal=principal, key=key, request_hash=request_hash, dataset_id=dataset_id, created_at=now())
        .on_conflict_do_update(index_elements=["principal", "key"], set_={"key": key})
        .returning(DatasetKeyRecord.request_hash, DatasetKeyRecord.dataset_id)
    )
    known_hash, known_id = session.execute(claim).one()
    if known_hash != request_hash:
        raise IdempotencyError(f"the idempotency key {key!r} was used for another upload, which made {known_id}; use a new key")


def _dialect(session: Session) -> Any:
    return postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
