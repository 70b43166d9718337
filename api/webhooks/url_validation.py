"""Checks that webhooks may be sent to a URL, before it is stored."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request

from api.http.dependencies import Configuration
from api.http.problems import InvalidDocumentError
from fedcore.errors import WebhookUrlError
from fedcore.platform.webhooks.urls import AddressRules, Resolve, WebhookTarget, resolve
from fedq.schemas import Flaw

AT_ONCE = 4
"""Names that are resolved at a time: one that nobody answers for takes long, and must not take all
threads.
"""


class UrlValidator:
    """Looks names up; of one application."""

    def __init__(self, look_up: Resolve = resolve) -> None:
        self._look_up, self._gate = look_up, CapacityLimiter(AT_ONCE)

    async def probe(self, url: str, rules: AddressRules) -> None:
        """Raises InvalidRequestError for what webhooks may not be sent to."""
        try:
            target = WebhookTarget.parse(url, rules)
            await to_thread.run_sync(target.reachable, rules, self._look_up, limiter=self._gate)
        except WebhookUrlError as error:
            raise InvalidDocumentError([Flaw(pointer="/url", detail=str(error))]) from error


async def _probe(request: Request, settings: Configuration) -> Callable[[str], Awaitable[None]]:
    prober: UrlValidator = request.app.state.prober
    rules = AddressRules(settings.webhook_networks, settings.webhook_http)
    return lambda url: prober.probe(url, rules)


Probe = Annotated[Callable[[str], Awaitable[None]], Depends(_probe)]
