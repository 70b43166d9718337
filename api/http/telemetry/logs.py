"""Log line and duration of each request, under an id that the response carries too."""

import re
from collections.abc import MutableMapping
from time import perf_counter
from typing import Any
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.telemetry.metrics import Metrics

REQUEST_ID = "x-request-id"
_FIT = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})

log = structlog.stdlib.get_logger("fedq.api")


def is_probe(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request is a health check or a scrape."""
    return scope.get("path") in _QUIET


class RequestLog:
    """Middleware that logs method, path, status, duration, and the experiment or run that the path
    names.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _FIT.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status, answered, seconds, began = 500, 0.0, 0.0, perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status, answered, seconds
            if message["type"] == "http.response.start":
                status, answered = message["status"], perf_counter() - began
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)
            # What comes after the last message, as nudging a worker, holds nobody up.
            seconds = perf_counter() - began

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                self._metrics.request(scope, status, answered)
                if not is_probe(scope):
                    facts = {
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": status,
                        "seconds": round(seconds, 4),
                    }
                    log.info("request", **facts, **scope.get("path_params", {}))
