"""Bundles of user code: kept once for each owner, found, listed, used, and deleted with their last
use.
"""

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from fedcore.bundles import storage_key
from fedcore.errors import ResourceNotFoundError, SpecificationError
from fedcore.platform.store import sharing
from fedcore.platform.store.tables import BundleRecord, BundleUseRecord
from fedcore.platform.store.uploads import Uploads
from fedcore.spec.code import CodeBundle

BUNDLES = Uploads(BundleRecord, BundleUseRecord, "cod", "code bundle", storage_key, BundleRecord.digest)


def find_if_any(
    session: Session, digest: str, owner: str | None, own: str | None = None
) -> BundleRecord | None:
    """The bundle with this digest, as `Uploads.find` chooses; None if there is none."""
    try:
        return BUNDLES.find(session, digest, owner, own)
    except ResourceNotFoundError:
        return None


def find(session: Session, digest: str, owner: str | None, own: str | None = None) -> BundleRecord:
    """The bundle with this digest, as `Uploads.find` chooses; raises ResourceNotFoundError, which says how
    to bring it.
    """
    found = find_if_any(session, digest, owner, own)
    if found is None:
        raise ResourceNotFoundError(explain_absence(digest))
    return found


def is_at_hand(session: Session, experiment_id: str, digest: str, owner: str) -> bool:
    """True if an experiment uses a bundle, which may be one that an administrator chose, or if `owner` may
    use this one.
    """
    used = exists().where(
        BundleUseRecord.experiment_id == experiment_id, BundleUseRecord.upload_id == BundleRecord.id
    )
    return bool(session.scalar(select(used))) or find_if_any(session, digest, owner) is not None


def explain_absence(digest: str) -> str:
    """Message about a bundle that a user does not have, and how to bring it."""
    return (
        f"there is no code bundle {digest} among yours and those that are shared with you. Send its folder"
        " (`fedq bundle send FOLDER`), import an experiment that was exported with it (`fedq import`), or ask"
        " its owner for access (`fedq share`)"
    )


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
        raise SpecificationError("/code", explain_absence(code.digest))
    return found


def use(session: Session, experiment_id: str, code: CodeBundle, owner: str | None) -> None:
    """Record that an experiment uses its bundle, after `check_use`."""
    BUNDLES.note_use(session, experiment_id, [check_use(session, code, owner, lock=True)])
