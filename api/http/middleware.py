"""Middleware of all requests: log lines, HEAD, compression, timeouts of request bodies, security
headers.

Requests carry their key in a header, or in a cookie that foreign pages cannot make a browser send
to any effect (`api/http/authentication.py`). Pages that show what users have written come with a
policy of their own (`api/web/rendering.py`), which allows no script in the page.
"""

import base64
import hashlib
import re
from asyncio import get_running_loop, timeout
from collections.abc import MutableMapping
from time import perf_counter
from typing import Any
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.dependencies import context_of, state_of

REQUEST_ID = "x-request-id"
_FIT = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})

log = structlog.stdlib.get_logger("fedq.api")


def is_probe(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request is a health check or a scrape."""
    return scope.get("path") in _QUIET


class HttpMiddleware:
    """Base class of middleware that serves HTTP requests and lets everything else pass."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or pass on the events of the application's lifespan."""
        if scope["type"] == "http":
            await self.serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        raise NotImplementedError


class RequestLog(HttpMiddleware):
    """Middleware that logs method, path, status, duration, and the experiment or run that the path
    names.
    """

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _FIT.fullmatch(given) else uuid4().hex
        context_of(scope).request_id = request_id
        status, answered, seconds, began = 500, 0.0, 0.0, perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status, answered, seconds
            if message["type"] == "http.response.start":
                status, answered = message["status"], perf_counter() - began
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                headers.update(context_of(scope).headers)
            await send(message)
            # Work after the last message, such as waking a worker, does not delay the client.
            seconds = perf_counter() - began

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                state_of(Request(scope)).metrics.request(scope, status, answered)
                if not is_probe(scope):
                    facts = {
                        "method": scope["method"],
                        "path": scope["path"],
                        "status": status,
                        "seconds": round(seconds, 4),
                    }
                    log.info("request", **facts, **scope.get("path_params", {}))


class HeadRequests(HttpMiddleware):
    """Middleware that answers HEAD as GET, without the body.

    Of a stream only the head is made: the application receives a disconnect message.
    """

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = False

        async def receive_until_answered() -> Message:
            return {"type": "http.disconnect"} if answered else await receive()

        async def send_head(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                answered = True

        as_get = {**scope, "method": "GET"}
        try:
            await self._app(as_get, receive_until_answered, send_head)
        finally:
            # The log names the route and the path parameters.
            scope.update({name: value for name, value in as_get.items() if name != "method"})


COMPRESSION_LEVEL = 4
"""Documents are within 16 % of their size at level 9, in a quarter of the time."""
INCOMPRESSIBLE = (
    *DEFAULT_EXCLUDED_CONTENT_TYPES,
    "application/octet-stream",  # parameters of models and archives
    "application/pdf",
    "application/vnd.apache.parquet",
    "font/woff2",
)


class ResponseCompression(GZipMiddleware):
    """Middleware that compresses responses with gzip for clients that accept it; event streams and
    files that are compressed already are sent as they are.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            app, minimum_size=1_000, compresslevel=COMPRESSION_LEVEL, exclude_content_types=INCOMPRESSIBLE
        )


GRACE_S = 30.0
"""Time that a body may fall behind the slowest rate."""
SLOWEST_RATE = 500.0
"""Bytes a second."""


class BodyTimeout(HttpMiddleware):
    """Middleware that ends the wait for a body that arrives too slowly.

    Only time spent waiting for the client counts.

    The application receives a disconnect message, and `api.http.problems` responds with 408. Slow
    heads and clients that do not read their answers never reach an application; docs/operations.md
    configures a proxy for them.
    """

    def __init__(self, app: ASGIApp, grace_s: float = GRACE_S, slowest_rate: float = SLOWEST_RATE) -> None:
        super().__init__(app)
        self._grace_s, self._slowest_rate = grace_s, slowest_rate

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        clock = get_running_loop().time
        left_s = self._grace_s
        complete = False

        async def receive_in_time() -> Message:
            nonlocal left_s, complete
            if complete:  # The next message is the end of the connection, which may take hours.
                return await receive()
            began = clock()
            try:
                async with timeout(left_s):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            earned_s = len(message.get("body", b"")) / self._slowest_rate
            left_s = min(self._grace_s, left_s - (clock() - began) + earned_s)
            return message

        await self._app(scope, receive_in_time, send)


HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DATA_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""Policy of responses that are not pages; a figure contains its own style."""
DOCUMENTATION_POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " font-src 'self' data:; connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""Policy of the pages of documentation: scripts of this service, and the inline scripts they were
built with.
"""
_INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


class SecurityHeadersMiddleware(HttpMiddleware):
    """Middleware that adds security headers."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        page: Message | None = None

        async def shield(message: Message) -> None:
            nonlocal page
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
                if (
                    headers.get("content-type", "").startswith("text/html")
                    and "content-security-policy" not in headers
                ):
                    page = message
                    return
                headers.setdefault("Content-Security-Policy", DATA_POLICY)
            elif page is not None:
                MutableHeaders(scope=page)["Content-Security-Policy"] = documentation_policy(
                    message.get("body", b"")
                )
                await send(page)
                page = None
            await send(message)

        await self._app(scope, receive, shield)


def documentation_policy(body: bytes) -> str:
    """Return the Content-Security-Policy of a page of documentation.

    Such pages are sent in one piece and contain nothing that a user has written.
    """
    digests = (
        base64.b64encode(hashlib.sha256(script).digest()).decode()
        for script in _INLINE.findall(body)
        if script.strip()
    )
    return DOCUMENTATION_POLICY.format(hashes="".join(f" 'sha256-{digest}'" for digest in digests))
