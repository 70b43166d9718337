"""The audit log: changes are recorded in their own transaction, refused attempts afterwards."""

from collections.abc import Callable
from typing import Annotated

import structlog
from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedcore.platform.access import Principal
from fedcore.platform.store import Database, Session, audit
from fedcore.platform.store.audit import AuditEvent

READING = frozenset({"GET", "HEAD", "OPTIONS"})
FORBIDDEN = frozenset({401, 403, 429})
MOST_CHARACTERS = 200

log = structlog.stdlib.get_logger("fedq.api")


Noting = Callable[[Session, str], None]


def of(request: Request, target: str) -> AuditEvent:
    """A change to `target` that this request makes, to be recorded in the transaction that makes
    it.
    """
    return _entry(request.scope, target, request.scope["route"].status_code or 200)


async def _note(request: Request) -> Noting:
    """Call it with the session of the change and the id of what was changed."""

    def note(session: Session, target: str) -> None:
        audit.record(session, of(request, target))
        request.state.noted = True

    return note


Note = Annotated[Noting, Depends(_note)]


class AuditFailuresMiddleware:
    """Middleware that notes changes which a known key asked for and which were refused, or
    failed.
    """

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self._app, self._database = app, database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        status = 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            state = scope.get("state", {})
            # What is only tried out changes nothing, whatever is said of it; but nobody tries out
            # what he may not do.
            harmless = state.get("trial", False) and status not in FORBIDDEN
            if status >= 400 and "principal" in state and "noted" not in state and not harmless:
                await run_in_threadpool(
                    self._write, _entry(scope, next(iter(scope.get("path_params", {}).values()), ""), status)
                )

    def _write(self, deed: AuditEvent) -> None:
        try:
            with self._database.transaction() as session:
                audit.record(session, deed)
        except Exception:
            # It was refused all the same, and the request is in the log.
            log.exception("a refusal was not noted", action=deed.action)


def _entry(scope: Scope, target: str, status: int) -> AuditEvent:
    principal: Principal = scope["state"]["principal"]
    client = scope.get("client")
    return AuditEvent(
        action=f"{scope['method']} {scope['route'].path}",
        target=target.replace("\0", "?")[:MOST_CHARACTERS],
        status=status,
        owner=principal.owner,
        key_id=principal.key_id,
        address=client[0] if client else "",
        request_id=scope["state"].get("request_id", ""),
    )
