"""Experiments: made, found, listed, edited and deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.orm import Session, defer

from fedcore.errors import ResourceNotFoundError
from fedcore.platform.status import Status
from fedcore.platform.store import lifecycle, prepared, quotas, removals
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.lifecycle import cancel, lock_runs, pause
from fedcore.platform.store.paging import RecordPage, floor, newest
from fedcore.platform.store.submissions import CreatedExperiment, NewExperiment, add_tags, create, create_all
from fedcore.platform.store.tables import ExperimentRecord, RunRecord, TagRecord

__all__ = [
    "CreatedExperiment",
    "Filter",
    "NewExperiment",
    "cancel",
    "create",
    "create_all",
    "delete",
    "edit",
    "find",
    "page",
    "pause",
    "resume",
    "retry",
]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which experiments are wanted: those with this owner, status, tag and name, created in [after,
    before); None: any.
    """

    owner: str | None = None
    status: Status | None = None
    tag: str | None = None
    name: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    search: str | None = None
    """Part of the name, in upper or lower case (of ASCII, on SQLite)."""


def find(session: Session, experiment_id: str, owner: str | None = None) -> ExperimentRecord:
    """The experiment with this id, if it is `owner`'s where one is given; raises ResourceNotFoundError."""
    record = prepared.get_by_id(session, ExperimentRecord, experiment_id)
    if record is None or owner not in (None, record.owner):
        raise ResourceNotFoundError(f"there is no experiment {experiment_id!r}")
    return record


def page(
    session: Session,
    wanted: Filter = Filter(),
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> RecordPage[ExperimentRecord]:
    """Experiments that are wanted, newest first.

    They come without `spec`, which can be large: use `find`.
    """
    query = select(ExperimentRecord).options(defer(ExperimentRecord.spec, raiseload=True))
    for column in ("owner", "status", "name"):
        value = getattr(wanted, column)
        query = query if value is None else query.where(getattr(ExperimentRecord, column) == value)
    if wanted.tag is not None:
        query = query.where(
            ExperimentRecord.id.in_(select(TagRecord.experiment_id).where(TagRecord.tag == wanted.tag))
        )
    if wanted.search is not None:
        query = query.where(ExperimentRecord.name.icontains(wanted.search, autoescape=True))
    return newest(
        session,
        _within(query, wanted.created_after, wanted.created_before),
        ExperimentRecord.id,
        limit,
        cursor,
    )


def edit(
    session: Session,
    experiment_id: str,
    *,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    priority: int | None = None,
) -> ExperimentRecord:
    """Change what is given; a new priority holds for its runs, too. Raises ResourceNotFoundError."""
    if priority is not None:
        lock_runs(session, experiment_id)
        session.execute(
            update(RunRecord).where(RunRecord.experiment_id == experiment_id).values(priority=priority)
        )
    given = {"name": name, "tags": None if tags is None else list(tags), "priority": priority}
    changes = {field: value for field, value in given.items() if value is not None}
    session.execute(
        update(ExperimentRecord)
        .where(ExperimentRecord.id == experiment_id)
        .values(updated_at=sql_now(), **changes)
    )
    record = find(session, experiment_id)
    if tags is not None:
        session.execute(delete_from(TagRecord).where(TagRecord.experiment_id == experiment_id))
        add_tags(session, {experiment_id: tags})
    return record


def resume(session: Session, experiment_id: str) -> ExperimentRecord:
    """`lifecycle.resume`; raises QuotaError as well, when the key of the runs may compute no
    more.
    """
    record = lifecycle.resume(session, experiment_id)
    quotas.check_resume(session, experiment_id)
    return record


def retry(session: Session, experiment_id: str) -> ExperimentRecord:
    """`lifecycle.retry`.

    Raises QuotaError as well, when more runs would wait than their key may have.
    """
    record = lifecycle.retry(session, experiment_id)
    quotas.check_retry(session, experiment_id)
    return record


def delete(session: Session, experiment_id: str) -> None:
    """Remove an experiment with its runs and their rows, whatever its status.

    A worker on one of them stops at its next commit.

    Their files are removed later. Raises ResourceNotFoundError.
    """
    lock_runs(session, experiment_id)
    quotas.archive_usage(session, experiment_id)
    removals.note_runs(session, experiment_id)
    gone = session.execute(
        delete_from(ExperimentRecord)
        .where(ExperimentRecord.id == experiment_id)
        .returning(ExperimentRecord.id)
    )
    if gone.first() is None:
        raise ResourceNotFoundError(f"there is no experiment {experiment_id!r}")


def _within(
    query: Select[ExperimentRecord], after: datetime | None, before: datetime | None
) -> Select[ExperimentRecord]:
    # An id begins with the time of its creation, so one index serves both the order and the bounds.
    if before:
        query = query.where(ExperimentRecord.id < floor("exp", before))
    return query.where(ExperimentRecord.id >= floor("exp", after)) if after else query
