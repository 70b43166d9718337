"""Files of users that are kept once for each owner, by digest, and deleted with their last use: code
bundles and pretrained weights.

Whatever finds one takes the owner for whom it is read or used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import delete as delete_from
from sqlalchemy import exists, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fedcore.errors import ResourceNotFoundError, StateConflictError
from fedcore.platform.store import removals, sharing
from fedcore.platform.store.clock import database_time, sql_now
from fedcore.platform.store.idempotency import dialect_of
from fedcore.platform.store.records import RecordPage, identifiers, newest
from fedcore.platform.store.tables import (
    BundleRecord,
    BundleUseRecord,
    ExperimentRecord,
    WeightsRecord,
    WeightsUseRecord,
)

UNUSED_S = 86_400.0
"""After this time a file that no experiment ever used is deleted."""
R = TypeVar("R", BundleRecord, WeightsRecord)


@dataclass(frozen=True)
class KeptFiles(Generic[R]):
    """The files of one table."""

    record: type[R]
    use_record: type[BundleUseRecord | WeightsUseRecord]
    used_id: InstrumentedAttribute[str]
    """Column of `use_record` with the id of the file."""
    prefix: str
    """Of ids."""
    noun: str
    storage_key: Callable[[str, str], str]
    """Key of a file in the storage, by its id and digest."""

    def new_id(self, session: Session) -> str:
        """An id for a file that is about to be stored."""
        return identifiers(self.prefix, database_time(session), 1)[0]

    def create(self, session: Session, file_id: str, digest: str, **facts: Any) -> R:
        """Store a file; if its owner has one of the same content, that one is returned instead."""
        upsert = (
            dialect_of(session)
            .insert(self.record)
            .values(id=file_id, digest=digest, created_at=sql_now(), **facts)
            # The update that changes nothing locks the row, so that it is not deleted before the answer.
            .on_conflict_do_update(index_elements=["owner", "digest"], set_={"digest": digest})
            .returning(self.record.id)
        )
        kept = session.scalars(upsert).one()
        return session.scalars(select(self.record).where(self.record.id == kept)).one()

    def find(self, session: Session, digest: str, owner: str | None, own: str | None = None) -> R:
        """The file with this digest that `owner`, None: an administrator, may read; of several that of
        `own` (default: of `owner`), or else the oldest. Raises ResourceNotFoundError.
        """
        query = select(self.record).where(
            self.record.digest == digest, sharing.visible_to(self.record, owner)
        )
        first = self.record.owner != (own or owner or ""), self.record.id
        found = session.scalars(query.order_by(*first).limit(1)).first()
        if found is None:
            raise ResourceNotFoundError(f"there is no {self.noun} {digest!r}")
        return found

    def page(
        self, session: Session, owner: str | None, *, limit: int = 50, cursor: str | None = None
    ) -> RecordPage[R]:
        """Files that `owner`, None: an administrator, may read, newest first."""
        query = select(self.record).where(sharing.visible_to(self.record, owner))
        return newest(session, query, self.record.id, limit, cursor)

    def note_use(self, session: Session, experiment_id: str, ids: Sequence[str]) -> None:
        """Record that an experiment uses files, whose rows are locked."""
        noted = dialect_of(session).insert(self.use_record).on_conflict_do_nothing()
        if ids:
            rows = [{self.used_id.key: file_id, "experiment_id": experiment_id} for file_id in ids]
            session.execute(noted, rows)

    def delete(self, session: Session, digest: str, owner: str | None, own: str | None = None) -> None:
        """Remove a file of `owner`, None: of anyone, for an administrator; as `find` chooses.

        Raises ResourceNotFoundError, ForbiddenError for one that is only shared with `owner`, and
        StateConflictError if an experiment of its owner uses it. Those of others do not keep it: their
        runs fail. What is stored is removed later.
        """
        found = self.find(session, digest, owner, own)
        sharing.require_owner(found, owner, digest)
        session.scalars(select(self.record.id).where(self.record.id == found.id).with_for_update()).first()
        users = (
            select(ExperimentRecord.id)
            .join(self.use_record, self.use_record.experiment_id == ExperimentRecord.id)
            .where(self.used_id == found.id, ExperimentRecord.owner == found.owner)
            .order_by(ExperimentRecord.id)
        )
        user = session.scalars(users.limit(1)).first()
        if user is not None:
            raise StateConflictError(
                f"{self.noun} {digest}: used by {user}; deleted with the last experiment that uses it"
            )
        self._remove(session, found)

    def release(self, session: Session, experiment_id: str) -> None:
        """Remove the files that an experiment uses, which is about to be deleted, if its owner owns them,
        no other experiment uses them and they are not shared.
        """
        query = (
            select(self.record)
            .join(self.use_record, self.used_id == self.record.id)
            .join(ExperimentRecord, ExperimentRecord.id == self.use_record.experiment_id)
            .where(
                ExperimentRecord.id == experiment_id,
                ExperimentRecord.owner == self.record.owner,
                ~sharing.is_shared(self.record),
            )
            .with_for_update(of=self.record)
        )
        for found in session.scalars(query).all():
            others = self.used_id == found.id, self.use_record.experiment_id != experiment_id
            if not session.scalar(select(exists().where(*others))):
                self._remove(session, found)

    def prune(self, session: Session, older_than_s: float = UNUSED_S) -> int:
        """Remove old files that no experiment uses and that are not shared; returns how many."""
        unused = ~exists().where(self.used_id == self.record.id)
        query = select(self.record).where(
            self.record.created_at < sql_now(-older_than_s), unused, ~sharing.is_shared(self.record)
        )
        records = session.scalars(query.with_for_update(skip_locked=True)).all()
        for found in records:
            self._remove(session, found)
        return len(records)

    def _remove(self, session: Session, found: R) -> None:
        session.execute(delete_from(self.record).where(self.record.id == found.id))
        sharing.end(session, found.id)
        removals.note(session, self.storage_key(found.id, found.digest))
