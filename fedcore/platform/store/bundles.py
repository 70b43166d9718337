"""Bundles of user code: kept once for each owner, found, listed, used, and deleted with their last
use.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.bundles import storage_key
from fedcore.errors import SpecificationError
from fedcore.platform.store.kept_files import KeptFiles
from fedcore.platform.store.tables import BundleRecord, BundleUseRecord
from fedcore.spec.code import CodeBundle

BUNDLES = KeptFiles(
    BundleRecord, BundleUseRecord, BundleUseRecord.bundle_id, "cod", "code bundle", storage_key
)


def use(session: Session, experiment_id: str, code: CodeBundle) -> None:
    """Record that an experiment uses its bundle, which keeps the bundle as long as the experiment.

    Raises SpecificationError if the bundle does not exist.
    """
    locked = select(BundleRecord.id).where(BundleRecord.id == code.id, BundleRecord.digest == code.digest)
    found = session.scalars(locked.with_for_update(read=True, key_share=True)).first()
    if found is None:
        raise unknown(code.digest)
    BUNDLES.note_use(session, experiment_id, [found])


def unknown(digest: str) -> SpecificationError:
    """The error of a specification that names a bundle that does not exist."""
    return SpecificationError(
        "/code", f"there is no code bundle {digest!r}; send it by POST /v1/bundles or `fedq submit --code`"
    )
