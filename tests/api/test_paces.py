"""Whoever is too slow is hung up on; who is only slow, or is kept waiting, is not."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from api import paces
from tests.support.live import serving
from tests.support.polling import eventually

GET = b"GET /healthz HTTP/1.1\r\nHost: fedq\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: fedq\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
SHORT_S = 0.2
PIECE = b" " * (1 << 16)


class Bodies:
    """An application that reads bodies, some of them only when it is let, and one that answers without end."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.let, self.hung_up = threading.Event(), threading.Event()
        self.app.get("/healthz")(lambda: "well")
        self.app.post("/at-once")(self._at_once)
        self.app.post("/later")(self._later)
        self.app.get("/endless")(self._endless)

    async def _at_once(self, request: Request) -> int:
        return len(await request.body())

    async def _later(self, request: Request) -> int:
        await asyncio.to_thread(self.let.wait)
        return len(await request.body())

    async def _endless(self) -> StreamingResponse:
        return StreamingResponse(self._pieces())

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield PIECE
                await asyncio.sleep(0)
        finally:
            self.hung_up.set()


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


@pytest.fixture
def url(bodies: Bodies) -> Iterator[str]:
    with serving(bodies.app) as url:
        yield url
        bodies.let.set()


def _connected(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=120)


def _said(connection: socket.socket) -> bytes:
    """What the service says until it hangs up."""
    said = b""
    try:
        while got := connection.recv(1 << 16):
            said += got
    except ConnectionResetError:
        pass
    return said


def test_one_who_says_nothing_is_hung_up_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "HEAD_S", SHORT_S)
    with _connected(url) as silent:
        assert _said(silent) == b""


def test_a_head_that_comes_by_drops_is_not_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "HEAD_S", SHORT_S)
    with _connected(url) as slow:
        slow.sendall(GET)
        slow.settimeout(SHORT_S / 4)
        said = None
        while said is None:
            try:
                slow.sendall(b"X")
                said = slow.recv(1 << 16)
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                said = b""
        assert said == b"" or said.startswith(b"HTTP/1.1 408 ")


def test_a_later_head_is_waited_for_no_longer_than_the_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _connected(url) as kept:
        kept.sendall(GET + b"\r\n")
        assert kept.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        monkeypatch.setattr(paces, "HEAD_S", SHORT_S)
        kept.sendall(GET)
        assert b"HTTP/1.1 408 " in _said(kept)


def test_a_body_that_does_not_come_is_not_waited_for_and_one_in_large_pieces_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "BODY_S", SHORT_S)
    monkeypatch.setattr(paces, "SLOWEST_PACE", 1.0)
    with _connected(url) as steady, _connected(url) as slow:
        steady.sendall(POST % (b"/at-once", 2_000) + b" " * 1_000)  # Worth a thousand seconds at this pace.
        slow.sendall(POST % (b"/at-once", 2_000))
        assert _said(slow).startswith(b"HTTP/1.1 408 ")
        steady.sendall(b" " * 1_000)
        assert _said(steady).startswith(b"HTTP/1.1 200 ")


def test_one_whose_body_waits_to_be_read_is_not_slow(url: str, bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "BODY_S", SHORT_S)
    monkeypatch.setattr(paces, "SLOWEST_PACE", 1e9)
    with _connected(url) as patient, _connected(url) as slow:
        patient.sendall(POST % (b"/later", 3 * len(PIECE)) + 2 * PIECE)
        slow.sendall(POST % (b"/at-once", 1))
        assert _said(slow).startswith(b"HTTP/1.1 408 ")
        patient.sendall(PIECE)
        bodies.let.set()
        assert _said(patient).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("some", [0, 1 << 16])
def test_one_who_reads_nothing_of_an_answer_or_too_little_is_hung_up_on(
    url: str, bodies: Bodies, some: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paces, "ANSWER_S", SHORT_S)
    monkeypatch.setattr(paces, "SLOWEST_PACE", 1e9)
    with _connected(url) as idle:
        idle.sendall(b"GET /endless HTTP/1.1\r\nHost: fedq\r\n\r\n")
        idle.recv(some)
        eventually(bodies.hung_up.is_set)


def test_one_who_reads_slowly_but_surely_is_served(url: str, bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "ANSWER_S", 0.0)
    monkeypatch.setattr(paces, "SLOWEST_PACE", 0.0)
    with _connected(url) as steady:
        steady.sendall(b"GET /endless HTTP/1.1\r\nHost: fedq\r\n\r\n")
        assert sum(len(steady.recv(1 << 16)) for _ in range(300)) > 0
        assert not bodies.hung_up.is_set()
