"""Experiments: made, found, listed, edited and deleted."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, insert, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, defer

from fedcore.errors import IdempotencyError, NotFoundError
from fedcore.spec import Arm, ExperimentSpec
from fedcore.status import Request, Status
from fedcore.store import datasets
from fedcore.store.clock import now
from fedcore.store.identifier import floor, identifiers
from fedcore.store.lifecycle import cancel, lock_runs, pause, resume, retry
from fedcore.store.tables import Document, ExperimentRecord, IdempotencyRecord, RunRecord, TagRecord

__all__ = ["Page", "cancel", "create", "delete", "edit", "find", "page", "pause", "resume", "retry"]


class Page(NamedTuple):
    """A part of a listing, newest first."""

    items: Sequence[ExperimentRecord]
    """Without `spec`, which can be large: use `find`."""
    next: str | None
    """The cursor of the next page; None on the last."""


def create(
    session: Session,
    spec: ExperimentSpec,
    *,
    owner: str = "local",
    idempotency_key: str | None = None,
    request_hash: str | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> ExperimentRecord:
    """Store `spec` and queue its runs: all arms, each with all seeds.

    With an `idempotency_key` that `owner` has used before, the experiment of that time is returned instead;
    raises IdempotencyError when the request was another one, and SpecificationError for uploaded data that are not there.
    """
    moment = session.scalars(select(now())).one()
    (experiment_id,) = identifiers("exp", moment, 1)
    document = spec.model_dump(mode="json")
    if idempotency_key is not None:
        request_hash = request_hash or hashlib.sha256(json.dumps(document).encode()).hexdigest()
        earlier = _claim_key(session, owner, idempotency_key, request_hash, experiment_id)
        if earlier is not None:
            return find(session, earlier)
    experiment, arms = _experiment(spec, experiment_id, owner, moment), spec.arms()
    session.execute(insert(ExperimentRecord).values(spec=document, provenance=dict(provenance or {}), **experiment))
    _set_tags(session, experiment_id, spec.tags)
    session.execute(insert(RunRecord), _runs(spec, arms, experiment_id, owner, moment))
    datasets.use(session, experiment_id, arms)
    return find(session, experiment_id)


def find(session: Session, experiment_id: str) -> ExperimentRecord:
    """The experiment with this id; raises NotFoundError."""
    record = session.get(ExperimentRecord, experiment_id)
    if record is None:
        raise NotFoundError(f"there is no experiment {experiment_id!r}")
    return record


def page(
    session: Session,
    *,
    status: Status | None = None,
    tag: str | None = None,
    name: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page:
    """Experiments, newest first, that have this status, tag and name and were created in [after, before)."""
    query = select(ExperimentRecord).options(defer(ExperimentRecord.spec, raiseload=True))
    if status is not None:
        query = query.where(ExperimentRecord.status == status)
    if name is not None:
        query = query.where(ExperimentRecord.name == name)
    if tag is not None:
        query = query.where(ExperimentRecord.id.in_(select(TagRecord.experiment_id).where(TagRecord.tag == tag)))
    query = _within(query, created_after, created_before, cursor)
    items = session.scalars(query.order_by(ExperimentRecord.id.desc()).limit(limit + 1)).all()
    return Page(items[:limit], items[limit - 1].id if len(items) > limit else None)


def edit(
    session: Session, experiment_id: str, *, name: str | None = None, tags: Sequence[str] | None = None, priority: int | None = None
) -> ExperimentRecord:
    """Change what is given; a new priority holds for its runs, too. Raises NotFoundError."""
    if priority is not None:
        lock_runs(session, experiment_id)
        session.execute(update(RunRecord).where(RunRecord.experiment_id == experiment_id).values(priority=priority))
    given = {"name": name, "tags": None if tags is None else list(tags), "priority": priority}
    changes = {field: value for field, value in given.items() if value is not None}
    session.execute(update(ExperimentRecord).where(ExperimentRecord.id == experiment_id).values(updated_at=now(), **changes))
    record = find(session, experiment_id)
    if tags is not None:
        _set_tags(session, experiment_id, tags)
    return record


def delete(session: Session, experiment_id: str) -> Sequence[str]:
    """Remove an experiment with its runs and their rows, whatever its status; a worker on one of them stops at its next commit.

    Returns the ids of the runs, under which their checkpoints and models are stored. Raises NotFoundError.
    """
    run_ids = lock_runs(session, experiment_id)
    gone = session.execute(delete_from(ExperimentRecord).where(ExperimentRecord.id == experiment_id).returning(ExperimentRecord.id))
    if gone.first() is None:
        raise NotFoundError(f"there is no experiment {experiment_id!r}")
    return run_ids


def _claim_key(session: Session, principal: str, key: str, request_hash: str, experiment_id: str) -> str | None:
    """Take `key` for `experiment_id`; the id of the experiment that has it already, if one has."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    values = {"principal": principal, "key": key, "request_hash": request_hash, "experiment_id": experiment_id, "created_at": now()}
    # Of two requests at once the second waits here until the first has committed. The update that changes nothing locks the
    # key that is there, so that its experiment cannot be deleted before it is answered with.
    upsert = (
        dialect.insert(IdempotencyRecord)
        .values(values)
        .on_conflict_do_update(index_elements=["principal", "key"], set_={"key": key})
        .returning(IdempotencyRecord.request_hash, IdempotencyRecord.experiment_id)
    )
    known_hash, known_id = session.execute(upsert).one()
    if known_hash != request_hash:
        raise IdempotencyError(f"the idempotency key {key!r} was used for another request, which made {known_id}; use a new key")
    return None if known_id == experiment_id else known_id


def _experiment(spec: ExperimentSpec, experiment_id: str, owner: str, moment: datetime) -> Document:
    return {
        "id": experiment_id,
        "name": spec.name,
        "description": spec.description,
        "tags": list(spec.tags),
        "status": Status.QUEUED,
        "priority": spec.execution.priority,
        "owner": owner,
        "created_at": moment,
        "updated_at": moment,
    }


def _runs(spec: ExperimentSpec, arms: Sequence[Arm], experiment_id: str, owner: str, moment: datetime) -> list[Document]:
    points = [(arm, seed) for arm in arms for seed in spec.seeds]
    return [
        {
            "id": run_id,
            "experiment_id": experiment_id,
            "arm": arm.index,
            "arm_name": arm.name,
            "settings": arm.settings,
            "seed": seed,
            "status": Status.QUEUED,
            "request": Request.NONE,
            "rounds": arm.spec.rounds,
            "queue": spec.execution.queue,
            "priority": spec.execution.priority,
            "owner": owner,
            "queued_at": moment,
            "created_at": moment,
            "provenance": {},
        }
        for run_id, (arm, seed) in zip(identifiers("run", moment, len(points)), points, strict=True)
    ]


def _set_tags(session: Session, experiment_id: str, tags: Sequence[str]) -> None:
    session.execute(delete_from(TagRecord).where(TagRecord.experiment_id == experiment_id))
    for tag in set(tags):
        session.execute(insert(TagRecord).values(tag=tag, experiment_id=experiment_id))


def _within(
    query: Select[ExperimentRecord], after: datetime | None, before: datetime | None, cursor: str | None
) -> Select[ExperimentRecord]:
    # An id begins with the time of its creation, so one index serves both the order and the bounds.
    bounds = [floor("exp", before) if before else None, cursor]
    for bound in bounds:
        if bound is not None:
            query = query.where(ExperimentRecord.id < bound)
    return query.where(ExperimentRecord.id >= floor("exp", after)) if after else query
