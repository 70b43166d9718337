"""Uploads of users, kept once for each owner: data sets until they are deleted, code bundles and files
of pretrained networks also no longer than they are used.

Whatever finds one takes the owner for whom it is read or used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, exists, select, true
from sqlalchemy import delete as delete_from
from sqlalchemy.orm import InstrumentedAttribute, Session

from fedcore.errors import ResourceNotFoundError, StateConflictError
from fedcore.platform.store import removals, sharing
from fedcore.platform.store.clock import database_time, sql_now
from fedcore.platform.store.idempotency import dialect_of
from fedcore.platform.store.records import RecordPage, make_ids, read_newest
from fedcore.platform.store.tables import ExperimentRecord, UploadRecord, UploadUseRecord

UNUSED_S = 86_400.0
"""After this time a bundle or a file of a network that no experiment ever used is deleted."""
R = TypeVar("R", bound=UploadRecord)


@dataclass(frozen=True)
class Uploads(Generic[R]):
    """The uploads of one kind."""

    record: type[R]
    use_record: type[UploadUseRecord]
    prefix: str
    """Prefix of ids."""
    noun: str
    storage_key: Callable[[str, str], str]
    """Key of the file in the storage, by id and digest."""
    name: InstrumentedAttribute[str]
    """Column by which users name one: id or digest."""
    keeping: ColumnElement[bool] = field(default_factory=true)
    """Condition on the experiments that keep the uploads that they use from being deleted."""
    ending: str = "and is deleted with the last experiment that uses it"
    """Advice about such an experiment, which ends the error."""

    def new_id(self, session: Session) -> str:
        """An id for an upload that is about to be stored."""
        return make_ids(self.prefix, database_time(session), 1)[0]

    def name_of(self, upload: R) -> str:
        """The name by which users know an upload."""
        return str(getattr(upload, self.name.key))

    def create(self, session: Session, upload_id: str, digest: str, **facts: Any) -> R:
        """Record an upload; if its owner has one of the same content, that one is returned instead."""
        upsert = (
            dialect_of(session)
            .insert(self.record)
            .values(id=upload_id, digest=digest, created_at=sql_now(), **facts)
            # The update that changes nothing locks the row, so that it is not deleted before the answer.
            .on_conflict_do_update(index_elements=["owner", "digest"], set_={"digest": digest})
            .returning(self.record.id)
        )
        kept = session.scalars(upsert).one()
        return session.scalars(select(self.record).where(self.record.id == kept)).one()

    def find(self, session: Session, name: str, owner: str | None, own: str | None = None) -> R:
        """The upload of this name that `owner`, None: an administrator, may read; of several that of
        `own` (default: of `owner`), or else the oldest. Raises ResourceNotFoundError.
        """
        query = select(self.record).where(self.name == name, sharing.visible_to(self.record, owner))
        first = self.record.owner != (own or owner or ""), self.record.id
        found = session.scalars(query.order_by(*first).limit(1)).first()
        if found is None:
            raise ResourceNotFoundError(f"there is no {self.noun} {name!r}")
        return found

    def page(
        self, session: Session, owner: str | None, *, limit: int = 50, cursor: str | None = None
    ) -> RecordPage[R]:
        """Uploads that `owner`, None: an administrator, may read, newest first."""
        query = select(self.record).where(sharing.visible_to(self.record, owner))
        return read_newest(session, query, self.record.id, limit, cursor)

    def note_use(self, session: Session, experiment_id: str, ids: Sequence[str]) -> None:
        """Record, once, that an experiment uses uploads, at least one, whose rows are locked."""
        noted = dialect_of(session).insert(self.use_record).on_conflict_do_nothing()
        session.execute(noted, [{"upload_id": id, "experiment_id": experiment_id} for id in ids])

    def delete(self, session: Session, name: str, owner: str | None, own: str | None = None) -> None:
        """Remove an upload of `owner`, None: of anyone, for an administrator; as `find` chooses.

        Raises ResourceNotFoundError, ForbiddenError for one that is only shared with `owner`, and
        StateConflictError if an experiment of its owner keeps it. Those of others do not: their runs
        fail. The file is removed later.
        """
        found = self.find(session, name, owner, own)
        sharing.require_owner(found, owner, name)
        # A concurrent submission that uses it holds the row until its experiment is visible below.
        locked = select(self.record.id).where(self.record.id == found.id).with_for_update()
        if session.scalars(locked).first() is None:
            raise ResourceNotFoundError(f"there is no {self.noun} {name!r}")
        users = (
            select(ExperimentRecord.id)
            .join(self.use_record, self.use_record.experiment_id == ExperimentRecord.id)
            .where(self.use_record.upload_id == found.id, ExperimentRecord.owner == found.owner, self.keeping)
            .order_by(ExperimentRecord.id)
        )
        user = session.scalars(users.limit(1)).first()
        if user is not None:
            raise StateConflictError(f"{self.noun} {name} is in use by {user}, {self.ending}")
        self._remove(session, found)

    def release(self, session: Session, experiment_id: str) -> None:
        """Remove the uploads that an experiment uses, which is about to be deleted, if its owner owns them,
        no other experiment uses them and they are not shared.
        """
        query = (
            select(self.record)
            .join(self.use_record, self.use_record.upload_id == self.record.id)
            .join(ExperimentRecord, ExperimentRecord.id == self.use_record.experiment_id)
            .where(
                ExperimentRecord.id == experiment_id,
                ExperimentRecord.owner == self.record.owner,
                ~sharing.is_shared(self.record),
            )
            .with_for_update(of=self.record)
        )
        for found in session.scalars(query).all():
            others = self.use_record.upload_id == found.id, self.use_record.experiment_id != experiment_id
            if not session.scalar(select(exists().where(*others))):
                self._remove(session, found)

    def prune(self, session: Session, older_than_s: float = UNUSED_S) -> int:
        """Remove old uploads that no experiment uses and that are not shared; returns how many."""
        unused = ~exists().where(self.use_record.upload_id == self.record.id)
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
