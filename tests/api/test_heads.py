"""What comes before a request's body is bounded, whoever sends it."""

import asyncio
import socket
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from api.heads import MOST_BYTES, BoundedHeads
from tests.support.live import serving

LENGTHY = b"x" * (MOST_BYTES - 1_000)


def _answered(url: str, *pieces: bytes) -> bytes:
    """What the service says to these bytes until it hangs up; sending ends where it no longer listens."""
    said = b""
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            while got := connection.recv(1 << 16):
                said += got
        except (BrokenPipeError, ConnectionResetError):
            pass
    return said


@pytest.mark.parametrize(
    "first", [b"GET /healthz HTTP/1.1\r\nHost: fedq\r\nX-Long: ", b"GET /healthz?"], ids=["a header", "the first line"]
)
def test_a_head_without_end_is_hung_up_on_and_others_are_served(app: FastAPI, first: bytes) -> None:
    with serving(app) as url:
        said = _answered(url, first, *[LENGTHY] * 1_000)
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
        assert _answered(url, b"GET /healthz HTTP/1.1\r\nHost: fedq\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_a_head_within_bounds_is_taken_whatever_follows_it(app: FastAPI) -> None:
    head = b"POST /v1/experiments HTTP/1.1\r\nHost: fedq\r\nConnection: close\r\nX-Long: " + LENGTHY
    with serving(app) as url:
        body = b" " * (2 * MOST_BYTES)
        said = _answered(url, head, b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert said.startswith(b"HTTP/1.1 401 ")


async def _said_to_one_piece(app: FastAPI, piece: bytes) -> bytes:
    """What the service says to bytes that the system hands it at once, until it hangs up."""
    config = uvicorn.Config(app, http=BoundedHeads, lifespan="off")
    config.load()
    protocol = BoundedHeads(config, ServerState(), {})
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    protocol.data_received(piece)
    said = await reader.read()
    writer.close()
    return said


def test_requests_that_arrive_in_one_piece_are_taken_however_large_it_is(app: FastAPI) -> None:
    body = b" " * MOST_BYTES
    request = b"POST /v1/experiments HTTP/1.1\r\nHost: fedq\r\nContent-Length: %d\r\n" % len(body)
    said = asyncio.run(_said_to_one_piece(app, request + b"\r\n" + body + request + b"Connection: close\r\n\r\n" + body))
    assert (said.count(b"HTTP/1.1 401 "), said.count(b"HTTP/1.1 431 ")) == (2, 0)
