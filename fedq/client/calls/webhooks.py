"""Webhooks by the client: `client.webhooks`."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fedcore.platform.status import DeliveryStatus
from fedq.client.calls.base import Calls
from fedq.client.transport import given, walk
from fedq.schemas import Delivery, DeliveryPage, NewWebhook, Webhook, WebhookPage

WEBHOOKS = "/v1/webhooks"


class WebhookCalls(Calls):
    """What a service tells of its own accord, and to whom."""

    async def create(
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
        return await self._transport.send(NewWebhook, "POST", WEBHOOKS, json=wanted)

    def list(self) -> AsyncGenerator[Webhook, None]:
        """The webhooks, newest first, fetched page by page."""
        return walk(lambda cursor: self._transport.read(WebhookPage, WEBHOOKS, cursor=cursor))

    async def get(self, id: str) -> Webhook:
        """A webhook, with whether it works."""
        return await self._transport.read(Webhook, f"{WEBHOOKS}/{id}")

    async def edit(self, id: str, /, **changes: Any) -> Webhook:
        """Change `url`, `events`, `name`, `experiment_id`, `tag` or `enabled`, and leave the rest."""
        return await self._transport.send(Webhook, "PATCH", f"{WEBHOOKS}/{id}", json=changes)

    async def rotate(self, id: str) -> NewWebhook:
        """Give a webhook a new `secret`; the old one signs as well for a day."""
        return await self._transport.send(NewWebhook, "POST", f"{WEBHOOKS}/{id}/rotate")

    async def delete(self, id: str) -> None:
        """Remove a webhook with its log."""
        await self._transport.remove(f"{WEBHOOKS}/{id}")

    async def ping(self, id: str) -> Delivery:
        """Send something of no consequence; `delivery` tells what becomes of it."""
        return await self._transport.send(Delivery, "POST", f"{WEBHOOKS}/{id}/ping")

    def deliveries(self, id: str, *, status: DeliveryStatus | None = None) -> AsyncGenerator[Delivery, None]:
        """What a webhook was told or is to be told, newest first, fetched page by page."""
        return walk(lambda cursor: self._transport.read(DeliveryPage, f"{WEBHOOKS}/{id}/deliveries", cursor=cursor, status=status))

    async def delivery(self, id: str, delivery_id: str) -> Delivery:
        """One of them, as it stands now."""
        return await self._transport.read(Delivery, f"{WEBHOOKS}/{id}/deliveries/{delivery_id}")

    async def redeliver(self, id: str, delivery_id: str) -> Delivery:
        """Send one of them again, now, under the id it has."""
        return await self._transport.send(Delivery, "POST", f"{WEBHOOKS}/{id}/deliveries/{delivery_id}/redeliver")
