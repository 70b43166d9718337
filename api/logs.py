"""One log line per request, under an id that the response carries too."""

import re
from time import perf_counter
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = "x-request-id"
_FIT = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUIET = frozenset({"/healthz", "/readyz"})


class RequestLog:
    """Middleware that logs method, path, status and duration."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _FIT.fullmatch(given) else uuid4().hex
        status, began = 500, perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                if scope["path"] not in _QUIET:
                    seconds = round(perf_counter() - began, 4)
                    structlog.get_logger("fedq.api").info(
                        "request", method=scope["method"], path=scope["path"], status=status, seconds=seconds
                    )
