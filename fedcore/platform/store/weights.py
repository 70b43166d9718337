"""Pretrained weights, configurations and tokenizers that users have uploaded: used by experiments of
those who may read them, and deleted with their last use.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.errors import SpecificationError
from fedcore.platform.store import sharing
from fedcore.platform.store.tables import WeightsRecord, WeightsUseRecord
from fedcore.platform.store.uploads import Uploads
from fedcore.platform.uploads.weights import storage_key

WEIGHTS = Uploads(
    WeightsRecord, WeightsUseRecord, "wgt", "pretrained weights", storage_key, WeightsRecord.digest
)


def use(session: Session, experiment_id: str, digests: Collection[str], owner: str) -> None:
    """Record which of the uploads that `owner` may read an experiment uses.

    Files that were never uploaded may be in a folder of the workers. Raises SpecificationError for an
    upload that the experiment has used before and that `owner` may no longer read.
    """
    locked = (
        select(WeightsRecord)
        .where(WeightsRecord.digest.in_(digests), sharing.visible_to(WeightsRecord, owner))
        .order_by(WeightsRecord.id)
        .with_for_update(read=True, key_share=True)
    )
    found: dict[str, str] = {}
    for record in session.scalars(locked):
        # Of several with the same content the owner's own, which no other user can delete.
        if record.owner == owner or record.digest not in found:
            found[record.digest] = record.id
    for record in used_by(session, experiment_id):
        if record.digest in digests and record.digest not in found:
            raise SpecificationError(
                "/problem", f"{record.content} {record.digest} are no longer shared with {owner}"
            )
    if found:
        WEIGHTS.note_use(session, experiment_id, list(found.values()))


def used_by(session: Session, experiment_id: str) -> Sequence[WeightsRecord]:
    """The uploads that an experiment uses."""
    query = (
        select(WeightsRecord)
        .join(WeightsUseRecord, WeightsUseRecord.upload_id == WeightsRecord.id)
        .where(WeightsUseRecord.experiment_id == experiment_id)
        .order_by(WeightsRecord.id)
    )
    return session.scalars(query).all()
