"""Creates experiments: one, or those submitted at the same moment, with as many statements as one
takes.

What an order may be refused for by itself (its idempotency key, a quota) is found before anything
of it is written, and fails that order alone. Whatever else goes wrong fails the transaction, and
with it all of them.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_, bindparam, literal, select
from sqlalchemy.orm import Session

from fedcore.errors import FedcoreError, IdempotencyError, QuotaError
from fedcore.platform.access import LOCAL
from fedcore.platform.status import RunRequest, Status
from fedcore.platform.store import datasets, prepared, progress, quotas, search, webhook_outbox
from fedcore.platform.store.clock import sql_now, transaction_time
from fedcore.platform.store.idempotency import claim_key, free_key
from fedcore.platform.store.paging import identifiers
from fedcore.platform.store.prepared import insert_into
from fedcore.platform.store.tables import (
    Document,
    ExperimentRecord,
    IdempotencyRecord,
    KeyRecord,
    RunRecord,
    TagRecord,
)
from fedcore.spec import Arm, ExperimentSpec

_ONCE = select(literal(1)).subquery()
_HELD = and_(KeyRecord.id.in_(bindparam("key_ids", expanding=True)), quotas.HAS_QUOTAS)
_ALL = select(sql_now(), webhook_outbox.LISTENED, KeyRecord.id).select_from(_ONCE.outerjoin(KeyRecord, _HELD))


def prefetch(session: Session, key_ids: Collection[str]) -> None:
    """Let `clock.moment`, notices, and the quotas of these keys need no statement of their own in
    this transaction.
    """
    rows = session.execute(_ALL, {"key_ids": sorted(key_ids)}).all()
    moment, listened, _ = rows[0]
    held = {key_id for _, _, key_id in rows}
    session.info.update(
        moment=moment, listened=listened, limited={key_id: key_id in held for key_id in key_ids}
    )


_MADE = IdempotencyRecord.experiment_id


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """An experiment that somebody asks for."""

    spec: ExperimentSpec
    owner: str = LOCAL
    key_id: str = ""
    """The API key it is asked for with, whose quotas hold for it."""
    idempotency_key: str | None = None
    """Where `owner` has used it before, the experiment of that time is what comes of the order."""
    request_hash: str | None = None
    """What tells the request from others under the same key; without it, the specification does."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    traceparent: str | None = None
    """The trace that the spans of its runs become part of."""
    memory_bytes: Sequence[int] = ()
    """What a run of each arm is estimated to need; without it, any worker may take them."""

    @property
    def runs(self) -> int:
        """How many there will be: all arms, each with all seeds."""
        return self.spec.arm_count * len(self.spec.seeds)


class CreatedExperiment(NamedTuple):
    """What an order has come to."""

    record: ExperimentRecord
    overview: progress.Overview | None
    """How it stands where it was made just now; None where the same request had made it before."""


def create(session: Session, order: NewExperiment) -> CreatedExperiment:
    """`create_all` of one; raises what would be its refusal."""
    (made,) = create_all(session, [order])
    if isinstance(made, FedcoreError):
        raise made
    return made


def create_all(session: Session, orders: Sequence[NewExperiment]) -> list[CreatedExperiment | FedcoreError]:
    """Store what is asked for and queue its runs; what has come of each order.

    Refused with IdempotencyError is another request under a key that was used before, with
    QuotaError what is more than the API key may have. Raises SpecificationError for uploaded data
    that are not there.
    """
    prefetch(session, {order.key_id for order in orders})
    at = transaction_time(session)
    ids = [identifiers("exp", at, 1)[0] for _ in orders]
    answered = _admitted(session, orders, ids)
    made = _stored(
        session,
        [(id, order) for id, order, answer in zip(ids, orders, answered, strict=True) if answer == id],
        at,
    )
    return [
        one
        if isinstance(one, FedcoreError)
        else made.get(one) or CreatedExperiment(_before(session, one), None)
        for one in answered
    ]


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


def runs_of(
    spec: ExperimentSpec,
    arms: Sequence[Arm],
    experiment_id: str,
    moment: datetime,
    memory_bytes: Sequence[int],
) -> list[Document]:
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
            "request": RunRequest.NONE,
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


def add_tags(session: Session, tags: Mapping[str, Sequence[str]]) -> None:
    """Let experiments that have no tags be found by these, given by the experiments' ids."""
    rows = [
        {"tag": tag, "experiment_id": experiment_id}
        for experiment_id, given in tags.items()
        for tag in sorted(set(given))
    ]
    if rows:
        session.execute(insert_into(TagRecord), rows)


def _admitted(
    session: Session, orders: Sequence[NewExperiment], ids: Sequence[str]
) -> list[str | FedcoreError]:
    """The ids of the experiments that answer the orders: their own, or that of an earlier one.

    Or why there is none.
    """
    answers: dict[int, str | FedcoreError] = {}
    joining: Counter[str] = Counter()
    # In an order that is the same everywhere: of two transactions, none comes to hold a lock that
    # the other waits for with one it needs.
    for place in sorted(
        range(len(orders)), key=lambda place: (orders[place].key_id, orders[place].idempotency_key or "")
    ):
        try:
            answers[place] = _admit(session, orders[place], ids[place], joining)
        except (IdempotencyError, QuotaError) as error:
            answers[place] = error
    return [answers[place] for place in range(len(orders))]


def _admit(session: Session, order: NewExperiment, id: str, joining: Counter[str]) -> str:
    """The id of the experiment that answers an order. `joining`, which changes in place, counts the
    runs of each key that are new.
    """
    if order.idempotency_key is not None:
        request_hash = (
            order.request_hash
            or hashlib.sha256(json.dumps(order.spec.model_dump(mode="json")).encode()).hexdigest()
        )
        first = claim_key(
            session, _MADE, order.owner, order.idempotency_key, request_hash, id, request="request"
        )
        if first != id:
            return first
    try:
        quotas.check_runs(session, order.key_id, joining[order.key_id] + order.runs)
    except QuotaError:
        if order.idempotency_key is not None:
            free_key(session, _MADE, order.owner, order.idempotency_key)
        raise
    joining[order.key_id] += order.runs
    return id


def _stored(
    session: Session, admitted: Sequence[tuple[str, NewExperiment]], at: datetime
) -> dict[str, CreatedExperiment]:
    """Write what nothing speaks against; what has come of it, by id."""
    if not admitted:
        return {}
    made, rows, queued, arms_of = {}, [], [], {}
    for id, order in admitted:
        experiment, arms = row_of(order.spec, id, order.owner, at), order.spec.arms()
        arms_of[id] = arms
        made_from = {
            "spec": order.spec.model_dump(mode="json"),
            "provenance": dict(order.provenance),
            "traceparent": order.traceparent,
        }
        rows.append(made_from | experiment)
        made_by = {"owner": order.owner, "key_id": order.key_id}
        queued += [
            run | made_by for run in runs_of(order.spec, arms, id, at, order.memory_bytes or [0] * len(arms))
        ]
        record = ExperimentRecord(
            **made_from, **experiment, **dict.fromkeys(("started_at", "finished_at", "error"))
        )
        made[id] = CreatedExperiment(record, progress.initial_overview(order.spec, arms))
    session.execute(insert_into(ExperimentRecord), rows)
    add_tags(session, {id: order.spec.tags for id, order in admitted})
    session.execute(insert_into(RunRecord), queued)
    for id, order in admitted:
        search.begin(session, id, order.spec)
        datasets.use(session, id, arms_of[id])
    webhook_outbox.of_runs(session, [run["id"] for run in queued])
    webhook_outbox.of_experiments(session, list(made))
    return made


def _before(session: Session, id: str) -> ExperimentRecord:
    """An experiment that was made before, which its idempotency key keeps from being deleted
    now.
    """
    record = prepared.get_by_id(session, ExperimentRecord, id)
    assert record is not None
    return record
