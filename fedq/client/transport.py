"""Requests to the service with retries, over a blocking or an asynchronous connection.

The client is written once, as coroutines over a Wire. On a BlockingWire they finish without ever
being suspended, so `finish` runs them without an event loop, even where one is already running, as
in a notebook.
"""

import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote

import anyio
import httpx
from httpx_sse import EventSource, ServerSentEvent
from pydantic import BaseModel, ValidationError

from fedq.client.errors import ServiceUnreachableError, error_of, make_refusal
from fedq.schemas.base import Page

Answer = TypeVar("Answer")
Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item")

EXPERIMENTS = "/v1/experiments"
RUNS = "/v1/runs"
RequestPath = str | tuple[str, ...]
"""A fixed path, or the one of a collection and further segments, which may come from users."""


class Wire(Protocol):
    """Sends requests and reads responses."""

    @property
    def http(self) -> httpx.Client | httpx.AsyncClient:
        """HTTP client that builds the requests."""

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Return the response, its body unread."""

    async def read(self, response: httpx.Response) -> None:
        """Read the body into `response.content`."""

    def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Iterate over the chunks of the body."""

    def messages(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        """Iterate over the server-sent events of the body."""

    async def release(self, response: httpx.Response) -> None:
        """Close a response, read or not."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def close(self) -> None:
        """Close the connections."""


class BlockingWire:
    """Blocks until each response arrives; see Wire."""

    def __init__(self, **options: Any) -> None:
        self.http = httpx.Client(**options)

    async def send(self, request: httpx.Request) -> httpx.Response:
        return self.http.send(request, stream=True)

    async def read(self, response: httpx.Response) -> None:
        response.read()

    async def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        for piece in response.iter_bytes():
            yield piece

    async def messages(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        for message in EventSource(response).iter_sse():
            yield message

    async def release(self, response: httpx.Response) -> None:
        response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self.http.close()


class AsyncWire:
    """Runs on the event loop; see Wire."""

    def __init__(self, **options: Any) -> None:
        self.http = httpx.AsyncClient(**options)

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self.http.send(request, stream=True)

    async def read(self, response: httpx.Response) -> None:
        await response.aread()

    def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        return response.aiter_bytes()

    def messages(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        return EventSource(response).aiter_sse()

    async def release(self, response: httpx.Response) -> None:
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def close(self) -> None:
        await self.http.aclose()


def finish(asked: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of a coroutine over a BlockingWire."""
    try:
        asked.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    asked.close()
    raise RuntimeError("a coroutine over a blocking wire waited for an event loop")


def finish_each(listed: AsyncGenerator[Item, None]) -> Iterator[Item]:
    """Iterate over an asynchronous generator over a BlockingWire."""
    try:
        while True:
            yield finish(_next(listed))
    except StopAsyncIteration:
        return
    finally:
        finish(listed.aclose())


async def _next(listed: AsyncGenerator[Item, None]) -> Item:
    return await anext(listed)


TIMEOUT_S = 30.0
PATIENCE_S = 60.0
"""Time for which a request is repeated while the service is away; a database takes up to a minute to
restart.
"""
FIRST_PATIENCE_S = 2.0
"""Time for which it is repeated before there has been any connection: there may be no service at this
address.
"""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 8.0
"""Between two repetitions, unless the service asks for more."""
AWAY = frozenset({502, 503, 504})
"""Statuses of a proxy whose service is starting, stopping or gone; 503 also of a service whose
database is unavailable. The request may have been executed all the same: its response, or the
acknowledgement of its commit, was lost.
"""
REFUSED = frozenset({429})
"""The service sends this status before it executes anything."""
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""No part of the request was sent."""
SHOWN = 100
"""Characters of a wrong id in a message."""
UNSAFE = frozenset({"POST"})
"""Not idempotent, unless the request carries an Idempotency-Key or is marked as repeatable."""
MAYBE_DONE = "fedq.maybe_done"
"""Extension of a repeated request whose first attempt may have been executed."""


@dataclass
class Contact:
    """Shared by the copies of a Transport. Changes in place."""

    was_made: bool = False
    """True once there has been a connection: something is at the address."""


class Transport:
    """Sends requests to one service and repeats requests that are safe to repeat."""

    def __init__(
        self,
        wire: Callable[..., Wire],
        url: str,
        api_key: str | None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect at the first request. Raises ServiceUnreachableError if `url` is not valid."""
        self.url = url.rstrip("/")
        self.clock = clock
        """Seconds since some moment."""
        self._patience_s, self._first_patience_s = patience_s, min(patience_s, FIRST_PATIENCE_S)
        self.deadline = inf
        """Time of `clock` after which no request is repeated."""
        self._contact = Contact()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            trust_env = not _is_loopback(self.url)
            self.wire = wire(
                base_url=self.url,
                headers=headers,
                timeout=timeout_s,
                trust_env=trust_env,
                verify=_certificates(trust_env),
            )
        except httpx.InvalidURL as error:
            raise ServiceUnreachableError(f"{url!r} is not a valid URL: {error}") from error

    def until(self, deadline: float) -> Self:
        """Return a copy on the same connection, whose deadline is `deadline`."""
        limited = copy(self)
        limited.deadline = deadline
        return limited

    async def request(self, method: str, path: RequestPath, **options: Any) -> httpx.Response:
        """Return the complete response. Raises ServiceError or ServiceUnreachableError."""
        async with self.stream(method, path, whole=True, **options) as response:
            return response

    async def send(self, model: type[Model], method: str, path: RequestPath, **options: Any) -> Model:
        """Return the parsed response."""
        response = await self.request(method, path, **options)
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise error_of(response) from error

    async def read(self, model: type[Model], path: RequestPath, **params: Any) -> Model:
        """GET `path`; parameters that are None are omitted."""
        return await self.send(model, "GET", path, params=drop_absent(**params))

    async def walk(
        self, model: type[Page[Item]], path: RequestPath, **params: Any
    ) -> AsyncGenerator[Item, None]:
        """Iterate over the items of all pages of a list, fetched on demand."""
        cursor = None
        while True:
            page = await self.read(model, path, cursor=cursor, **params)
            for item in page.items:
                yield item
            if (cursor := page.next) is None:
                return

    async def remove(self, path: RequestPath) -> None:
        """DELETE `path`."""
        await self.request("DELETE", path)

    async def download(
        self, source: RequestPath, path: Path, *, accept: str | None = None, **params: Any
    ) -> Path:
        """Write the response for `source` to `path`, which exists only once it is complete.
        Parameters that are None are omitted. `accept` is the media type wanted (default: any).
        """
        partial = path.with_name(f".{path.name}.partial")
        headers = drop_absent(Accept=accept)
        async with self.stream("GET", source, params=drop_absent(**params), headers=headers) as response:
            with partial.open("wb") as file:
                async for piece in self.wire.pieces(response):
                    file.write(piece)
        return partial.replace(path)

    @asynccontextmanager
    async def stream(
        self, method: str, path: RequestPath, *, whole: bool = False, repeatable: bool = False, **options: Any
    ) -> AsyncIterator[httpx.Response]:
        """Yield the response, read completely if `whole`. Raises ServiceError or
        ServiceUnreachableError, also inside the block.
        """
        request = self._build(method, path, **options)
        safe = repeatable or method not in UNSAFE or "Idempotency-Key" in request.headers
        try:
            response = await self._send(request, safe=safe, whole=whole)
            try:
                if response.is_error and not _was_removed(response):
                    await self.wire.read(response)
                    raise error_of(response)
                yield response
            finally:
                await self.wire.release(response)
        except httpx.TransportError as error:
            advice = "" if self._contact.was_made else "; start a service with `fedq up`, or set FEDQ_URL"
            raise ServiceUnreachableError(f"no answer from {self.url}: {error}{advice}") from error

    def _build(self, method: str, path: RequestPath, **options: Any) -> httpx.Request:
        content = options.get("content")
        try:
            request = self.wire.http.build_request(method, _encoded(path), **options)
        except httpx.InvalidURL as error:
            raise make_refusal(
                HTTPStatus.REQUEST_URI_TOO_LONG, f"the request is too long: {error}"
            ) from error
        except UnicodeEncodeError as error:
            raise make_refusal(HTTPStatus.BAD_REQUEST, f"the request cannot be sent: {error}") from error
        for name, value in request.headers.items():
            # httpx finds this when it sends, and calls it an error of the connection.
            if not value.isprintable() or value != value.strip():
                raise make_refusal(
                    HTTPStatus.BAD_REQUEST,
                    f"the request cannot be sent: {name} has control characters, or blanks at an end",
                )
        if isinstance(content, httpx.SyncByteStream | httpx.AsyncByteStream):
            request.stream = content
        return request

    async def _send(self, request: httpx.Request, *, safe: bool, whole: bool) -> httpx.Response:
        """Return the response to the request or to its last repetition."""
        pauses = Pauses(self.clock, self.deadline)
        while True:
            try:
                response = await self._exchange(request, whole=whole)
            except httpx.TransportError as error:
                begun = not isinstance(error, UNSENT)
                self._contact.was_made |= begun
                pause_s = pauses.next_s(
                    self._patience_s if self._contact.was_made else self._first_patience_s
                )
                if pause_s is None or (begun and not safe):
                    raise
            else:
                self._contact.was_made = True
                begun = response.status_code not in REFUSED
                if begun and not (safe and response.status_code in AWAY):
                    return response
                pause_s = pauses.next_s(self._patience_s, _asked_to_wait_s(response))
                if pause_s is None:
                    return response
                await self.wire.release(response)
            if begun:
                request.extensions[MAYBE_DONE] = True
            await self.wire.sleep(pause_s)

    async def _exchange(self, request: httpx.Request, *, whole: bool) -> httpx.Response:
        response = await self.wire.send(request)
        if whole:
            try:
                await self.wire.read(response)
            finally:
                await self.wire.release(response)
        return response


def drop_absent(**params: Any) -> dict[str, Any]:
    """Return the parameters that are not None."""
    return {name: value for name, value in params.items() if value is not None}


def _encoded(path: RequestPath) -> str:
    """Return the path with its segments percent-encoded.

    Raises NotFoundError for a segment that would lead elsewhere: services and proxies decode `%2F` and
    resolve `..` before they look for a route.
    """
    if isinstance(path, str):
        return path
    collection, *segments = path
    for segment in segments:
        if segment in ("", ".", "..") or "/" in segment:
            raise make_refusal(
                HTTPStatus.NOT_FOUND,
                f"{segment[:SHOWN]!r} is no id, and no name that can be looked up: those contain no slash,"
                " and are not empty, '.' or '..'. An experiment in a folder comes to the service by"
                " `fedq import FOLDER`",
            )
    # Names stand for ids.
    return "/".join([collection, *(quote(segment, safe="@:") for segment in segments)])


def _was_removed(response: httpx.Response) -> bool:
    """True if a repeated DELETE finds nothing: an earlier attempt may have succeeded without its
    response arriving.
    """
    request = response.request
    return (
        request.method == "DELETE"
        and response.status_code == HTTPStatus.NOT_FOUND
        and MAYBE_DONE in request.extensions
    )


class Pauses:
    """Pauses between the repetitions of a request. Changes in place."""

    def __init__(self, clock: Callable[[], float], deadline: float) -> None:
        self._clock, self._deadline = clock, deadline
        self._began: float | None = None
        self._longest_s = FIRST_PAUSE_S

    def next_s(self, patience_s: float, asked_s: float = 0.0) -> float | None:
        """Length of the next pause, at least `asked_s`; None once `patience_s` have passed since the first
        one, or would pass by waiting as asked.

        They double, with jitter, so that clients disconnected together do not return together.
        """
        now = self._clock()
        self._began = now if self._began is None else self._began
        left_s = min(self._began + patience_s, self._deadline) - now
        if left_s <= 0 or asked_s > left_s:
            return None
        usual_s = self._longest_s * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
        self._longest_s = min(2 * self._longest_s, LONGEST_PAUSE_S)
        return max(min(usual_s, left_s), asked_s)


def _asked_to_wait_s(response: httpx.Response) -> float:
    """Seconds of the Retry-After header."""
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else 0.0


@cache
def _certificates(trust_env: bool) -> ssl.SSLContext:
    """The trusted certificates; to read them takes longer than most requests."""
    return httpx.create_ssl_context(trust_env=trust_env)


def _is_loopback(url: str) -> bool:
    """True if `url` is on this machine, where proxies are not used."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
