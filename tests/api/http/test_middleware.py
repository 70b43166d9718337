"""A body that arrives too slowly is answered with 408.

A slow application is not the client's fault.
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request

from api.http import problems
from api.http.middleware import SLOWEST_RATE, BodyTimeout
from tests.support.live import serving

POST = b"POST %s HTTP/1.1\r\nHost: fedq\r\nConnection: %s\r\nContent-Length: %d\r\n\r\n"
SHORT_S = 0.5
PIECE = b" " * (1 << 16)


class Reader:
    """An application that reads bodies at once, or only when it is let."""

    def __init__(self, slowest_rate: float) -> None:
        self.let = threading.Event()
        self.app = FastAPI()
        self.app.post("/at-once")(self._read)
        self.app.post("/later")(self._read_later)
        problems.install(self.app)
        self.app.add_middleware(BodyTimeout, grace_s=SHORT_S, slowest_rate=slowest_rate)

    async def _read(self, request: Request) -> int:
        return len(await request.body())

    async def _read_later(self, request: Request) -> int:
        await asyncio.to_thread(self.let.wait)
        return len(await request.body())


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> Reader:
    return Reader(getattr(request, "param", SLOWEST_RATE))


@pytest.fixture
def url(reader: Reader) -> Iterator[str]:
    with serving(reader.app) as url:
        yield url
        reader.let.set()


def _connected(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60)


def _answer(connection: socket.socket) -> bytes:
    """All that the service answers until it closes the connection."""
    answer = b""
    while piece := connection.recv(1 << 16):
        answer += piece
    return answer


def test_a_body_that_does_not_arrive_is_answered_with_408_and_its_connection_closed(url: str) -> None:
    with _connected(url) as silent:
        silent.sendall(POST % (b"/at-once", b"keep-alive", 1))
        assert _answer(silent).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("reader", [1e9], indirect=True)
def test_a_body_that_arrives_by_drops_is_answered_with_408(url: str) -> None:
    with _connected(url) as slow:
        slow.sendall(POST % (b"/at-once", b"keep-alive", 1 << 20))
        slow.settimeout(SHORT_S / 4)
        answer = b""
        while not answer:
            try:
                slow.sendall(b" ")
                answer = slow.recv(1 << 16)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("reader", [1.0], indirect=True)
def test_a_body_ahead_of_the_slowest_rate_may_pause_for_the_grace_period_only(url: str) -> None:
    with _connected(url) as paused:
        paused.sendall(POST % (b"/at-once", b"close", 2 * len(PIECE)) + PIECE)
        assert _answer(paused).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("reader", [1e9], indirect=True)
def test_time_in_which_the_application_does_not_read_is_not_the_clients(url: str, reader: Reader) -> None:
    with _connected(url) as patient, _connected(url) as slow:
        patient.sendall(POST % (b"/later", b"close", 3 * len(PIECE)) + 2 * PIECE)
        slow.sendall(POST % (b"/at-once", b"close", 1))
        assert _answer(slow).startswith(b"HTTP/1.1 408 ")  # More than the grace period later.
        patient.sendall(PIECE)
        reader.let.set()
        assert _answer(patient).startswith(b"HTTP/1.1 200 ")
