"""Webhooks by the client: `client.webhooks`."""

from collections.abc import Iterator, Sequence
from typing import Any

from api.client.transport import Transport, given, walk
from api.schemas import Delivery, DeliveryPage, NewWebhook, Webhook, WebhookPage
from fedcore.status import DeliveryStatus

WEBHOOKS = "/v1/webhooks"


class Webhooks:
    """What a service tells of its own accord, and to whom."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        url: str,
        events: Sequence[str] | None = None,
        *,
        name: str | None = None,
        experiment_id: str | None = None,
        tag: str | None = None,
    ) -> NewWebhook:
        """Have changes of status sent to `url`: the ends of experiments, unless `events` says what; of all, or of one, or of a tag's.

        The answer holds the `secret` that signs them, which cannot be read again.
        """
        wanted = given(url=url, events=events, name=name, experiment_id=experiment_id, tag=tag)
        return self._transport.send(NewWebhook, "POST", WEBHOOKS, json=wanted)

    def list(self) -> Iterator[Webhook]:
        """The webhooks, newest first, fetched page by page."""
        return walk(lambda cursor: self._transport.read(WebhookPage, WEBHOOKS, cursor=cursor))

    def get(self, id: str) -> Webhook:
        """A webhook, with whether it works."""
        return self._transport.read(Webhook, f"{WEBHOOKS}/{id}")

    def edit(self, id: str, **changes: Any) -> Webhook:
        """Change `url`, `events`, `name`, `experiment_id`, `tag` or `enabled`, and leave the rest."""
        return self._transport.send(Webhook, "PATCH", f"{WEBHOOKS}/{id}", json=changes)

    def rotate(self, id: str) -> NewWebhook:
        """Give a webhook a new `secret`; the old one signs as well for a day."""
        return self._transport.send(NewWebhook, "POST", f"{WEBHOOKS}/{id}/rotate")

    def delete(self, id: str) -> None:
        """Remove a webhook with its log."""
        self._transport.request("DELETE", f"{WEBHOOKS}/{id}")

    def ping(self, id: str) -> Delivery:
        """Send something of no consequence; `delivery` tells what becomes of it."""
        return self._transport.send(Delivery, "POST", f"{WEBHOOKS}/{id}/ping")

    def deliveries(self, id: str, *, status: DeliveryStatus | None = None) -> Iterator[Delivery]:
        """What a webhook was told or is to be told, newest first, fetched page by page."""
        return walk(lambda cursor: self._transport.read(DeliveryPage, f"{WEBHOOKS}/{id}/deliveries", cursor=cursor, status=status))

    def delivery(self, id: str, delivery_id: str) -> Delivery:
        """One of them, as it stands now."""
        return self._transport.read(Delivery, f"{WEBHOOKS}/{id}/deliveries/{delivery_id}")

    def redeliver(self, id: str, delivery_id: str) -> Delivery:
        """Send one of them again, now, under the id it has."""
        return self._transport.send(Delivery, "POST", f"{WEBHOOKS}/{id}/deliveries/{delivery_id}/redeliver")
