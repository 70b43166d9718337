"""The application called without a network, as a client calls it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from api.app import create_app, share_state
from api.results.pictures import DrawingGate
from api.webhooks.service import UrlValidator
from fedcore.platform.logging import configure
from fedcore.settings import Settings
from tests.support.access import bearer
from tests.support.databases import kept_database

BASE_URL = "http://fedq"


@cache
def built() -> FastAPI:
    """The application of this process.

    FastAPI works a route out when it is first asked for, which takes longer than most requests,
    and keeps what it knows of thousands of endpoints, and with them hundreds of applications.
    """
    return create_app(Settings(_env_file=None, database_url="sqlite://"))


def application(
    settings: Settings, url_validator: UrlValidator | None = None, drawing_gate: DrawingGate | None = None
) -> FastAPI:
    """The application of this process, from now on with these settings and a state of its own.

    A test that needs two at a time makes the second by `create_app`.
    """
    app = built()
    share_state(app, settings, url_validator, drawing_gate, kept_database(settings.database))
    configure(settings, "api")
    return app


class _Stream(httpx.AsyncByteStream):
    """A body in the pieces it comes in."""

    def __init__(self, pieces: httpx.SyncByteStream) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class _Transport(httpx.BaseTransport):
    """httpx's ASGI transport, for code that is not asynchronous."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        # Like a server, and unlike httpx by default, it answers 500 where the application raises.
        self._asgi = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        asked = httpx.Request(
            request.method, request.url, headers=request.headers, stream=_Stream(request.stream)
        )
        response = await self._asgi.handle_async_request(asked)
        content = b"".join([piece async for piece in response.aiter_raw()])
        return httpx.Response(response.status_code, headers=response.headers, content=content)


@contextmanager
def calling(app: FastAPI, key: str | None = None) -> Iterator[httpx.Client]:
    """A client of `app` that sends `key`, if one is given.

    The application is started and stopped as a server would.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        httpx.Client(
            transport=_Transport(app, portal), base_url=BASE_URL, headers=bearer(key) if key else None
        ) as client,
    ):
        yield client
