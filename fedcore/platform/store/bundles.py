"""Bundles of user code: kept once for each owner, found, listed, used, and deleted with their last
use.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from fedcore.bundles import storage_key
from fedcore.errors import SpecificationError
from fedcore.platform.store import sharing
from fedcore.platform.store.tables import BundleRecord, BundleUseRecord
from fedcore.platform.store.uploads import Uploads
from fedcore.spec.code import CodeBundle

BUNDLES = Uploads(BundleRecord, BundleUseRecord, "cod", "code bundle", storage_key, BundleRecord.digest)


def check_use(session: Session, code: CodeBundle, owner: str | None, *, lock: bool = False) -> str:
    """Check that `owner`, None: an administrator, may read the bundle of a specification; with `lock`,
    lock it.

    Returns its id. Raises SpecificationError if there is none.
    """
    named = BundleRecord.id == code.id, BundleRecord.digest == code.digest
    query = select(BundleRecord.id).where(*named, sharing.visible_to(BundleRecord, owner))
    query = query.with_for_update(read=True, key_share=True) if lock else query
    found = session.scalars(query).first()
    if found is None:
        raise SpecificationError(
            "/code",
            f"there is no code bundle {code.digest!r} among yours and those that are shared with you; send it"
            " first, e.g. by `fedq submit --code`",
        )
    return found


def use(session: Session, experiment_id: str, code: CodeBundle, owner: str | None) -> None:
    """Record that an experiment uses its bundle, after `check_use`."""
    BUNDLES.note_use(session, experiment_id, [check_use(session, code, owner, lock=True)])
