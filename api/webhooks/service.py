"""Webhooks: their answers, and the check of their URLs before they are stored."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request

from api.http.dependencies import SettingsDep
from api.http.problems import InvalidDocumentError
from fedcore.errors import WebhookUrlError
from fedcore.platform.store.tables import WebhookRecord
from fedcore.platform.webhooks.urls import Network, Resolve, WebhookTarget, resolve
from fedq.schemas import Delivery, Webhook

AT_ONCE = 4
"""Names resolved at a time: a name server that does not answer must not block all threads."""


class UrlValidator:
    """Checks URLs of webhooks; resolves a limited number of names at a time."""

    def __init__(self, look_up: Resolve = resolve) -> None:
        self._look_up, self._gate = look_up, CapacityLimiter(AT_ONCE)

    async def probe(self, url: str, allowed: Sequence[Network]) -> None:
        """Raise InvalidDocumentError for a URL that webhooks may not be sent to."""
        try:
            target = WebhookTarget.parse(url)
            await to_thread.run_sync(target.reachable, allowed, self._look_up, limiter=self._gate)
        except WebhookUrlError as error:
            raise InvalidDocumentError.at("/url", str(error)) from error


async def _probe(request: Request, settings: SettingsDep) -> Callable[[str], Awaitable[None]]:
    validator: UrlValidator = request.app.state.url_validator
    return lambda url: validator.probe(url, settings.webhook_networks)


Probe = Annotated[Callable[[str], Awaitable[None]], Depends(_probe)]


def webhook_answer(record: WebhookRecord) -> Webhook:
    """Return a webhook without its secret."""
    return Webhook(
        id=record.id,
        name=record.name,
        owner=record.owner,
        url=record.url,
        events=record.kinds,
        experiment_id=record.experiment_id,
        enabled=record.disabled_at is None,
        disabled_at=record.disabled_at,
        disabled_reason=record.disabled_reason,
        failing_since=record.failing_since,
        last_delivery=_last_delivery(record),
        created_at=record.created_at,
    )


def _last_delivery(record: WebhookRecord) -> Delivery | None:
    if record.last_id is None or record.last_status is None:
        return None
    return Delivery(
        id=record.last_id,
        status=record.last_status,
        attempted_at=record.last_attempt_at,
        error=record.last_error,
        next_attempt_at=record.next_attempt_at,
    )
