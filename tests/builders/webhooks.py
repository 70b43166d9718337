"""Webhooks for tests of the store."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from fedcore.platform.store import Database, webhook_deliveries, webhooks
from fedcore.platform.store.tables import DeliveryRecord, WebhookRecord
from fedcore.platform.store.webhook_deliveries import ClaimedDelivery
from fedcore.platform.webhooks.events import EventKind
from fedcore.platform.webhooks.protocol import ReceiverResponse
from tests.builders.transactions import read, write

GOOD, BAD = ReceiverResponse(200), ReceiverResponse(500, "the answer was 500")
URL = "https://hooks.example.org/fedq"


def create_webhook(
    database: Database, *, owner: str = "local", kinds: Sequence[EventKind] = tuple(EventKind), **wanted: Any
) -> WebhookRecord:
    """A new webhook, of everything unless told otherwise."""
    return write(database, webhooks.create, owner=owner, url=URL, kinds=kinds, **wanted)[0]


def pending_deliveries(database: Database, hook: WebhookRecord) -> list[DeliveryRecord]:
    """Pending deliveries of a webhook, in order."""
    query = select(DeliveryRecord).where(DeliveryRecord.webhook_id == hook.id).order_by(DeliveryRecord.id)
    return list(read(database, lambda session: session.scalars(query).all()))


def pending_kinds(database: Database, hook: WebhookRecord) -> list[str]:
    """Kinds of the pending deliveries of a webhook, in order."""
    return [json.loads(delivery.body)["type"] for delivery in pending_deliveries(database, hook)]


def data_of(delivery: DeliveryRecord) -> Any:
    """Data of a delivery."""
    return json.loads(delivery.body)["data"]


def claim_delivery(database: Database, *, lease_s: float = 60.0, **options: Any) -> ClaimedDelivery:
    """Take up the next delivery, which must be there."""
    claimed = write(database, webhook_deliveries.claim_due, lease_s, **options)
    assert claimed is not None, "nothing is due"
    return claimed


def webhook_now(database: Database, hook: WebhookRecord) -> WebhookRecord:
    """A webhook as it is now."""
    return read(database, webhooks.find, hook.id)
