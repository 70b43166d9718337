"""Webhooks by the client: `client.webhooks`."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fedcore.platform.status import DeliveryStatus
from fedq.client.calls.base import Calls
from fedq.client.transport import given, walk
from fedq.schemas import Delivery, DeliveryPage, NewWebhook, Webhook, WebhookPage

WEBHOOKS = "/v1/webhooks"


class WebhookCalls(Calls):
    """Create, read, edit and delete webhooks, and inspect their deliveries."""

    async def create(
        self,
        url: str,
        events: Sequence[str] | None = None,
        *,
        name: str | None = None,
        experiment_id: str | None = None,
        tag: str | None = None,
    ) -> NewWebhook:
        """Create a webhook that sends `events` (default: the final status of experiments) of all
        experiments, of one, or of a tag.

        The result contains the signing `secret`, which is not shown again.
        """
        wanted = given(url=url, events=events, name=name, experiment_id=experiment_id, tag=tag)
        return await self._transport.send(NewWebhook, "POST", WEBHOOKS, json=wanted)

    def list(self) -> AsyncGenerator[Webhook, None]:
        """Iterate over the webhooks, newest first."""
        return walk(lambda cursor: self._transport.read(WebhookPage, WEBHOOKS, cursor=cursor))

    async def get(self, id: str) -> Webhook:
        """Return a webhook and its state."""
        return await self._transport.read(Webhook, f"{WEBHOOKS}/{id}")

    async def edit(self, id: str, /, **changes: Any) -> Webhook:
        """Change the given fields of `url`, `events`, `name`, `experiment_id`, `tag` and
        `enabled`.
        """
        return await self._transport.send(Webhook, "PATCH", f"{WEBHOOKS}/{id}", json=changes)

    async def rotate(self, id: str) -> NewWebhook:
        """Return a new `secret`; the previous one remains valid for a day."""
        return await self._transport.send(NewWebhook, "POST", f"{WEBHOOKS}/{id}/rotate")

    async def delete(self, id: str) -> None:
        """Delete a webhook with its deliveries."""
        await self._transport.remove(f"{WEBHOOKS}/{id}")

    async def ping(self, id: str) -> Delivery:
        """Send a test event; `delivery` returns its result."""
        return await self._transport.send(Delivery, "POST", f"{WEBHOOKS}/{id}/ping")

    def deliveries(self, id: str, *, status: DeliveryStatus | None = None) -> AsyncGenerator[Delivery, None]:
        """Iterate over the deliveries of a webhook, newest first."""
        return walk(
            lambda cursor: self._transport.read(
                DeliveryPage, f"{WEBHOOKS}/{id}/deliveries", cursor=cursor, status=status
            )
        )

    async def delivery(self, id: str, delivery_id: str) -> Delivery:
        """Return a delivery."""
        return await self._transport.read(Delivery, f"{WEBHOOKS}/{id}/deliveries/{delivery_id}")

    async def redeliver(self, id: str, delivery_id: str) -> Delivery:
        """Send a delivery again immediately, with the same id."""
        return await self._transport.send(
            Delivery, "POST", f"{WEBHOOKS}/{id}/deliveries/{delivery_id}/redeliver"
        )
