"""Users' own data sets, and their use by experiments.

Whatever finds one for use takes the owner for whom it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from fedcore.data.description import UploadedContent
from fedcore.data.uploaded import Uploaded, uploads_in
from fedcore.errors import ResourceNotFoundError, SpecificationError
from fedcore.platform.status import ENDED
from fedcore.platform.store import sharing
from fedcore.platform.store.tables import (
    DatasetRecord,
    DatasetUseRecord,
    Document,
    ExperimentRecord,
)
from fedcore.platform.store.uploads import Uploads
from fedcore.platform.uploads import dataset_storage

if TYPE_CHECKING:
    from fedcore.spec import Arm


DATASETS = Uploads(
    DatasetRecord,
    DatasetUseRecord,
    "set",
    "data set",
    dataset_storage.storage_key,
    DatasetRecord.id,
    ExperimentRecord.status.not_in(ENDED),
    "which is unfinished; cancel it or wait for it",
)


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
    if ids := check_use(session, document, arms, owner, lock=True):
        DATASETS.note_use(session, experiment_id, ids)


def unknown(pointer: str, dataset_id: str) -> SpecificationError:
    """The error of a specification that names a data set that is not there, or that its owner may not
    read.
    """
    return SpecificationError(
        pointer,
        f"there is no data set {dataset_id!r} among yours and those that are shared with you, and none of the"
        " same content: upload it, and give the id that this returns or the digest in `content`",
    )
