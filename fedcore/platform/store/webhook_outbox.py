"""Webhook events of runs and experiments, written in the transaction that changes their status.

So a change and its deliveries are stored together or not at all: none is lost with a process, none
tells of a change that was rolled back.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, exists, insert, select
from sqlalchemy.orm import Session

from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.records import make_ids
from fedcore.platform.store.tables import DeliveryRecord as Delivery
from fedcore.platform.store.tables import Document, ExperimentRecord, RunRecord, WebhookRecord
from fedcore.platform.webhooks.events import PING, EventKind

_MOST_CHARACTERS = 2_000
_LISTENED = select(exists().where(WebhookRecord.disabled_at.is_(None)))
_EXPERIMENTS = select(
    ExperimentRecord.owner,
    ExperimentRecord.id.label("experiment_id"),
    ExperimentRecord.name,
    ExperimentRecord.tags,
    ExperimentRecord.status,
    ExperimentRecord.error,
).order_by(ExperimentRecord.id)
_RUNS = (
    select(
        RunRecord.owner,
        RunRecord.experiment_id,
        ExperimentRecord.name,
        ExperimentRecord.tags,
        RunRecord.id.label("run_id"),
        RunRecord.arm,
        RunRecord.arm_name,
        RunRecord.seed,
        RunRecord.status,
        RunRecord.done.label("rounds_done"),
        RunRecord.rounds.label("rounds_total"),
        RunRecord.diverged_round,
        RunRecord.stop_reason,
        RunRecord.error,
    )
    .join(ExperimentRecord, ExperimentRecord.id == RunRecord.experiment_id)
    .order_by(RunRecord.id)
)


def of_experiments(session: Session, experiment_ids: Sequence[str]) -> None:
    """Record that the statuses of these experiments have just changed to what they are."""
    _record(session, _EXPERIMENTS, ExperimentRecord, experiment_ids, "experiment")


def of_runs(session: Session, run_ids: Sequence[str]) -> None:
    """Record that the statuses of these runs have just changed to what they are."""
    _record(session, _RUNS, RunRecord, run_ids, "run")


def ping(session: Session, webhook_id: str) -> str:
    """Send a test message to a webhook; returns the id of the delivery."""
    return _write(session, [(webhook_id, PING, {"webhook_id": webhook_id})])[0]


def _record(
    session: Session,
    facts: Select[*tuple[Any, ...]],
    record: type[ExperimentRecord | RunRecord],
    ids: Sequence[str],
    thing: str,
) -> None:
    # Without a webhook, a change of status costs no more than this.
    if not ids or not session.scalar(_LISTENED):
        return
    wanted = record.id.in_(ids)
    listeners = _listeners(session, select(record.owner).where(wanted))
    if listeners:
        rows = session.execute(facts.where(wanted)).mappings()
        changes = [(EventKind(f"{thing}.{row['status'].value}"), dict(row)) for row in rows]
        _write(session, [event for kind, found in changes for event in _events_for(listeners, kind, found)])


def _listeners(session: Session, owners: Select[str]) -> Sequence[WebhookRecord]:
    """Lock the webhooks of these owners until the end of the transaction; one that is being deleted
    is waited for, and not returned.
    """
    listening = WebhookRecord.disabled_at.is_(None), WebhookRecord.owner.in_(owners)
    query = select(WebhookRecord).where(*listening).order_by(WebhookRecord.id)
    return session.scalars(query.with_for_update(read=True, key_share=True, of=WebhookRecord)).all()


_Event = tuple[str, str, Document]
"""Id of a webhook, kind of event and its data."""


def _events_for(listeners: Sequence[WebhookRecord], kind: EventKind, facts: Document) -> Iterator[_Event]:
    for hook in listeners:
        of_this = hook.experiment_id in (None, facts["experiment_id"])
        if hook.owner == facts["owner"] and kind in hook.kinds and of_this:
            yield hook.id, kind.value, facts


def _write(session: Session, events: Sequence[_Event]) -> list[str]:
    moment = session.scalars(select(sql_now())).one()
    ids = make_ids("msg", moment, len(events))
    rows: list[dict[str, Any]] = [
        {"id": id, "webhook_id": webhook_id, "body": _body(kind, moment, facts)}
        for id, (webhook_id, kind, facts) in zip(ids, events, strict=True)
    ]
    common = {"due_at": moment, "created_at": moment, "fence": 0, "failures": 0}
    if rows:
        session.execute(insert(Delivery), [row | common for row in rows])
    return ids


def _body(kind: str, moment: datetime, facts: Document) -> str:
    """Body as Standard Webhooks specifies it, and no larger than it recommends, whatever a library
    has put into an error.
    """
    facts = {
        field: value[:_MOST_CHARACTERS] if isinstance(value, str) else value for field, value in facts.items()
    }
    return json.dumps(
        {"type": kind, "timestamp": moment.isoformat().replace("+00:00", "Z"), "data": facts},
        ensure_ascii=False,
    )
