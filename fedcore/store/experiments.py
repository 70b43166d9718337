"""Experiments: made, found, listed, edited and deleted."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.orm import Session, defer

from fedcore.access import LOCAL
from fedcore.errors import NotFoundError
from fedcore.spec import Arm, ExperimentSpec
from fedcore.status import Request, Status
from fedcore.store import datasets, lifecycle, notices, outset, progress, quotas, search, statements
from fedcore.store.clock import moment, now
from fedcore.store.idempotency import claim_key
from fedcore.store.identifier import floor, identifiers
from fedcore.store.lifecycle import cancel, lock_runs, pause
from fedcore.store.paging import Page, newest
from fedcore.store.statements import insert_into
from fedcore.store.tables import Document, ExperimentRecord, IdempotencyRecord, RunRecord, TagRecord

__all__ = ["Filter", "Made", "cancel", "create", "delete", "edit", "find", "page", "pause", "resume", "retry"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which experiments are wanted: those with this owner, status, tag and name, created in [after, before); None: any."""

    owner: str | None = None
    status: Status | None = None
    tag: str | None = None
    name: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    search: str | None = None
    """What their names hold, in upper or lower case (of ASCII, on SQLite)."""


class Made(NamedTuple):
    """What a submission has come to."""

    record: ExperimentRecord
    overview: progress.Overview | None
    """How it stands where it was made just now; None where the same request had made it before."""


def create(  # noqa: PLR0913 - all that is known of a submission
    session: Session,
    spec: ExperimentSpec,
    *,
    owner: str = LOCAL,
    key_id: str = "",
    idempotency_key: str | None = None,
    request_hash: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    traceparent: str | None = None,
    memory_bytes: Sequence[int] = (),
) -> Made:
    """Store `spec` and queue its runs: all arms, each with all seeds; their spans become part of the trace `traceparent`.

    `memory_bytes` says what a run of each arm is estimated to need; without it, any worker may take them.

    With an `idempotency_key` that `owner` has used before, the experiment of that time is returned instead;
    raises IdempotencyError when the request was another one, SpecificationError for uploaded data that are not there, and QuotaError
    when it is more than the API key `key_id` may have.
    """
    outset.ask(session, key_id)
    at = moment(session)
    (experiment_id,) = identifiers("exp", at, 1)
    document = spec.model_dump(mode="json")
    if idempotency_key is not None:
        request_hash = request_hash or hashlib.sha256(json.dumps(document).encode()).hexdigest()
        first = claim_key(session, IdempotencyRecord.experiment_id, owner, idempotency_key, request_hash, experiment_id, request="request")
        if first != experiment_id:
            return Made(find(session, first), None)
    experiment, arms = row_of(spec, experiment_id, owner, at), spec.arms()
    made_from = {"spec": document, "provenance": dict(provenance or {}), "traceparent": traceparent}
    session.execute(insert_into(ExperimentRecord), made_from | experiment)
    add_tags(session, experiment_id, spec.tags)
    made_by = {"owner": owner, "key_id": key_id}
    queued = runs_of(spec, arms, experiment_id, at, memory_bytes or [0] * len(arms))
    session.execute(insert_into(RunRecord), [run | made_by for run in queued])
    search.begin(session, experiment_id, spec)
    quotas.hold_runs(session, key_id)
    datasets.use(session, experiment_id, arms)
    notices.of_runs(session, [run["id"] for run in queued])
    notices.of_experiments(session, [experiment_id])
    record = ExperimentRecord(**made_from, **experiment, **dict.fromkeys(("started_at", "finished_at", "error")))
    return Made(record, progress.outset(spec, arms))


def find(session: Session, experiment_id: str, owner: str | None = None) -> ExperimentRecord:
    """The experiment with this id, if it is `owner`'s where one is given; raises NotFoundError."""
    record = statements.get(session, ExperimentRecord, experiment_id)
    if record is None or owner not in (None, record.owner):
        raise NotFoundError(f"there is no experiment {experiment_id!r}")
    return record


def page(
    session: Session,
    wanted: Filter = Filter(),
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ExperimentRecord]:
    """Experiments that are wanted, newest first.

    They come without `spec`, which can be large: use `find`.
    """
    query = select(ExperimentRecord).options(defer(ExperimentRecord.spec, raiseload=True))
    for column in ("owner", "status", "name"):
        value = getattr(wanted, column)
        query = query if value is None else query.where(getattr(ExperimentRecord, column) == value)
    if wanted.tag is not None:
        query = query.where(ExperimentRecord.id.in_(select(TagRecord.experiment_id).where(TagRecord.tag == wanted.tag)))
    if wanted.search is not None:
        query = query.where(ExperimentRecord.name.icontains(wanted.search, autoescape=True))
    return newest(session, _within(query, wanted.created_after, wanted.created_before), ExperimentRecord.id, limit, cursor)


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
        session.execute(delete_from(TagRecord).where(TagRecord.experiment_id == experiment_id))
        add_tags(session, experiment_id, tags)
    return record


def resume(session: Session, experiment_id: str) -> ExperimentRecord:
    """`lifecycle.resume`; raises QuotaError as well, when the key of the runs may compute no more."""
    record = lifecycle.resume(session, experiment_id)
    quotas.hold_resume(session, experiment_id)
    return record


def retry(session: Session, experiment_id: str) -> ExperimentRecord:
    """`lifecycle.retry`; raises QuotaError as well, when more runs would wait than their key may have."""
    record = lifecycle.retry(session, experiment_id)
    quotas.hold_retry(session, experiment_id)
    return record


def delete(session: Session, experiment_id: str) -> Sequence[str]:
    """Remove an experiment with its runs and their rows, whatever its status; a worker on one of them stops at its next commit.

    Returns the ids of the runs, under which their checkpoints and models are stored. Raises NotFoundError.
    """
    run_ids = lock_runs(session, experiment_id)
    quotas.keep_spent(session, experiment_id)
    gone = session.execute(delete_from(ExperimentRecord).where(ExperimentRecord.id == experiment_id).returning(ExperimentRecord.id))
    if gone.first() is None:
        raise NotFoundError(f"there is no experiment {experiment_id!r}")
    return run_ids


def row_of(spec: ExperimentSpec, experiment_id: str, owner: str, moment: datetime) -> Document:
    """The row of a new experiment, without what it was made from."""
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


def runs_of(spec: ExperimentSpec, arms: Sequence[Arm], experiment_id: str, moment: datetime, memory_bytes: Sequence[int]) -> list[Document]:
    """The rows of new runs: all `arms`, each with all seeds of `spec`."""
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
            "memory_bytes": memory_bytes[arm.index],
            "queued_at": moment,
            "created_at": moment,
            "provenance": {},
        }
        for run_id, (arm, seed) in zip(identifiers("run", moment, len(points)), points, strict=True)
    ]


def add_tags(session: Session, experiment_id: str, tags: Sequence[str]) -> None:
    """Let an experiment that has no tags be found by these."""
    if tags:
        session.execute(insert_into(TagRecord), [{"tag": tag, "experiment_id": experiment_id} for tag in sorted(set(tags))])


def _within(query: Select[ExperimentRecord], after: datetime | None, before: datetime | None) -> Select[ExperimentRecord]:
    # An id begins with the time of its creation, so one index serves both the order and the bounds.
    if before:
        query = query.where(ExperimentRecord.id < floor("exp", before))
    return query.where(ExperimentRecord.id >= floor("exp", after)) if after else query
