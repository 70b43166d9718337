"""How requests travel: by a wire that blocks, or by one that lets the event loop go on meanwhile.

The client is written once, as coroutines over a wire. On the blocking wire they come to their end
without ever being suspended, so that `finish` carries them out without an event loop, and also
where one is running already, as in a notebook.
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
    """Sends requests and reads answers."""

    @property
    def http(self) -> httpx.Client | httpx.AsyncClient:
        """What requests are built with."""

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, its body yet to be read."""

    async def read(self, response: httpx.Response) -> None:
        """Read the body, after which `response.content` holds it."""

    def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body, piece by piece."""

    def messages(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        """The server-sent events of the body, as they come."""

    async def release(self, response: httpx.Response) -> None:
        """Be done with an answer, read or not."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def close(self) -> None:
        """Close the connections."""


class BlockingWire:
    """Waits for each answer; see Wire."""

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
    """Lets others go on while it waits; see Wire."""

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
    """What a coroutine over a BlockingWire returns."""
    try:
        asked.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    asked.close()
    raise RuntimeError("a coroutine over a blocking wire waited for an event loop")


def finish_each(listed: AsyncGenerator[Item, None]) -> Iterator[Item]:
    """What an asynchronous generator over a BlockingWire yields."""
    try:
        while True:
            yield finish(_next(listed))
    except StopAsyncIteration:
        return
    finally:
        finish(listed.aclose())


async def _next(listed: AsyncGenerator[Item, None]) -> Item:
    return await anext(listed)
