"""Webhooks and their deliveries as answers."""

import json

from fedcore.platform.status import DeliveryStatus
from fedcore.platform.store.tables import DeliveryRecord, WebhookRecord
from fedq.schemas import Delivery, NewWebhook, Webhook


def webhook_answer(record: WebhookRecord) -> Webhook:
    """A webhook, without its secret."""
    return Webhook(
        id=record.id,
        name=record.name,
        owner=record.owner,
        url=record.url,
        events=record.kinds,
        experiment_id=record.experiment_id,
        tag=record.tag,
        enabled=record.disabled_at is None,
        disabled_at=record.disabled_at,
        disabled_reason=record.disabled_reason,
        failing_since=record.failing_since,
        previous_secret_until=record.previous_until,
        created_at=record.created_at,
    )


def new_webhook_answer(record: WebhookRecord, secret: str) -> NewWebhook:
    """A webhook, and its secret, this once."""
    return NewWebhook(**webhook_answer(record).model_dump(), secret=secret)


def delivery_answer(record: DeliveryRecord) -> Delivery:
    """A delivery with its attempts."""
    return Delivery.model_validate(
        {
            "id": record.id,
            "webhook_id": record.webhook_id,
            "event": record.kind,
            "status": record.status,
            "attempts": record.attempts,
            "next_attempt_at": record.due_at if record.status is DeliveryStatus.PENDING else None,
            "created_at": record.created_at,
            "finished_at": record.finished_at,
            "payload": json.loads(record.body),
        }
    )
