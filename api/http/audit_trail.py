"""The audit log: changes are recorded in their own transaction, refused attempts afterwards."""

from typing import Annotated

import structlog
from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from api.http.authentication import READING
from api.http.dependencies import context_of, state_of
from api.http.middleware import HttpMiddleware
from fedcore.platform.store import UNAVAILABLE, Database, audit
from fedcore.platform.store.audit import AuditFacts

FORBIDDEN = frozenset({401, 403, 429})
MAX_TARGET_CHARACTERS = 200

log = structlog.stdlib.get_logger("fedq.api")


async def _facts(request: Request) -> AuditFacts:
    return _facts_of(request.scope, request.scope["route"].status_code or 200)


# After the principal among an endpoint's parameters: it is part of the facts.
Audit = Annotated[AuditFacts, Depends(_facts)]
"""Facts of a change, to be recorded in its transaction: `audit.record(session, facts, id)`."""


class AuditFailuresMiddleware(HttpMiddleware):
    """Middleware that records changes that a known key requested and that were refused or failed."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] in READING:
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
            context = context_of(scope)
            # A dry run changes nothing, but it needs permission.
            is_harmless = context.is_dry_run and status not in FORBIDDEN
            if status >= 400 and context.principal is not None and not is_harmless:
                target = next(iter(scope.get("path_params", {}).values()), "")
                database = state_of(Request(scope)).database
                await run_in_threadpool(_write, database, _facts_of(scope, status), target)


def _write(database: Database, facts: AuditFacts, target: str) -> None:
    try:
        with database.transaction() as session:
            audit.record(session, facts, target.replace("\0", "?")[:MAX_TARGET_CHARACTERS])
    # It was refused all the same, and the request is in the log.
    except UNAVAILABLE as error:
        log.warning("refused attempt not recorded", action=facts.action, error=str(error))
    except Exception:
        log.exception("refused attempt not recorded", action=facts.action)


def _facts_of(scope: Scope, status: int) -> AuditFacts:
    context, client = context_of(scope), scope.get("client")
    assert context.principal is not None
    return AuditFacts(
        action=f"{scope['method']} {scope['route'].path}",
        status=status,
        owner=context.principal.owner,
        key_id=context.principal.key_id,
        address=client[0] if client else "",
        request_id=context.request_id,
    )
