"""Pretrained weights that users have uploaded: used by experiments of their owner, and deleted with
their last use.
"""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.platform.store.kept_files import KeptFiles
from fedcore.platform.store.tables import WeightsRecord, WeightsUseRecord
from fedcore.platform.uploads.weights import storage_key

WEIGHTS = KeptFiles(
    WeightsRecord, WeightsUseRecord, WeightsUseRecord.weights_id, "wgt", "pretrained weights", storage_key
)


def use(session: Session, experiment_id: str, digests: Collection[str | None], owner: str) -> None:
    """Record which uploads of `owner` an experiment uses, which keeps them as long as the experiment.

    Weights that were never uploaded may be in a folder of the workers.
    """
    locked = (
        select(WeightsRecord.id)
        .where(WeightsRecord.owner == owner, WeightsRecord.digest.in_(digests))
        .order_by(WeightsRecord.id)
        .with_for_update(read=True, key_share=True)
    )
    WEIGHTS.note_use(session, experiment_id, session.scalars(locked).all())


def stored_for(session: Session, experiment_id: str, digest: str) -> str | None:
    """Key in the storage of the upload with this digest that an experiment uses; None if it uses
    none.
    """
    query = (
        select(WeightsRecord.id)
        .join(WeightsUseRecord, WeightsUseRecord.weights_id == WeightsRecord.id)
        .where(WeightsUseRecord.experiment_id == experiment_id, WeightsRecord.digest == digest)
    )
    found = session.scalars(query).first()
    return None if found is None else storage_key(found, digest)
