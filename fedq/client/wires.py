"""HTTP connections of the client, blocking or asynchronous.

The client is written once, as coroutines over a Wire. On a BlockingWire they finish without ever
being suspended, so `finish` runs them without an event loop, even where one is already running, as
in a notebook.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import anyio
import httpx
from httpx_sse import EventSource, ServerSentEvent

Answer = TypeVar("Answer")
Item = TypeVar("Item")


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
