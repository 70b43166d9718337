"""Minimal HTTP/1.1 over asyncio: the load generator must not need the cores of the service."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import httptools


class Answer(NamedTuple):
    """How a request was answered."""

    status: int
    body: bytes
    seconds: float
    """From the first byte out to the last byte in."""


class Connection(asyncio.Protocol):
    """A connection that is kept, with one request at a time."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._head = f"Host: fedq\r\nAuthorization: Bearer {key}\r\n".encode()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] | None = None
        self._pieces: list[bytes] = []
        self._began = 0.0
        self.listener: Callable[[bytes], None] | None = None
        """Is handed the pieces of a body as they come, in place of the answer."""

    async def open(self) -> None:
        """Connect to the loopback."""
        self._parser = httptools.HttpResponseParser(self)
        self._transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: self, "127.0.0.1", self._port
        )

    async def get(self, path: str) -> Answer:
        """Ask for a path."""
        return await self._ask(b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), self._head))

    async def post(self, path: str, body: bytes) -> Answer:
        """Send a JSON document."""
        content = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        return await self._ask(b"POST %s HTTP/1.1\r\n%s%s\r\n%s" % (path.encode(), self._head, content, body))

    async def _ask(self, request: bytes) -> Answer:
        if (
            self._transport is None or self._transport.is_closing()
        ):  # the service hangs up on those who are silent for long
            await self.open()
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._parser.feed_data(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by the event loop."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the service hung up before it had answered"))

    def on_body(self, piece: bytes) -> None:
        """Called by the parser."""
        if self.listener is None:
            self._pieces.append(piece)
        else:
            self.listener(piece)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        assert self._answer is not None
        body, self._pieces = b"".join(self._pieces), []
        if not self._answer.done():
            self._answer.set_result(
                Answer(self._parser.get_status_code(), body, time.perf_counter() - self._began)
            )
