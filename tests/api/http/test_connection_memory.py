"""Memory that the HTTP server uses for one connection is bounded, with or without an API key."""

import socket
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI

from tests.support.live import HEAD_BYTES, serving

GET = b"GET /healthz HTTP/1.1\r\nHost: fedq\r\nConnection: close\r\n"
POST = b"POST /v1/experiments HTTP/1.1\r\nHost: fedq\r\nTransfer-Encoding: chunked\r\n\r\n"
SENT_BYTES = 100 << 20
ACCEPTED_BYTES = 32 << 20
"""More than the limit and the socket buffers of both ends hold together, and less than is sent."""


def _connected(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=60)


def _answer(connection: socket.socket) -> bytes:
    """All that the service answers until it closes the connection."""
    answer = b""
    try:
        while piece := connection.recv(1 << 16):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


def _accepted(connection: socket.socket, repeated: bytes) -> int:
    """Bytes that the service takes of `SENT_BYTES` before it closes the connection."""
    piece = repeated * ((1 << 18) // len(repeated))
    accepted = 0
    try:
        while accepted < SENT_BYTES:
            connection.sendall(piece)
            accepted += len(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return accepted


def _is_served(url: str) -> bool:
    with _connected(url) as connection:
        connection.sendall(GET + b"\r\n")
        return _answer(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("first", "repeated"),
    [(b"GET /healthz?", b"x"), (GET + b"X-Long: ", b"x"), (GET, b"X-Short: 1\r\n")],
    ids=["request line", "header", "headers"],
)
def test_an_endless_head_closes_the_connection(app: FastAPI, first: bytes, repeated: bytes) -> None:
    with serving(app) as url:
        with _connected(url) as endless:
            endless.sendall(first)
            assert _accepted(endless, repeated) < ACCEPTED_BYTES
        assert _is_served(url)


@pytest.mark.parametrize(
    ("first", "repeated"),
    [(b"0\r\nX-Long: ", b"x"), (b"0\r\n", b"X-Short: 1\r\n"), (b"1;extension=", b"x")],
    ids=["trailer", "trailers", "chunk extension"],
)
@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "after the answer"])
def test_an_endless_trailer_closes_the_connection(
    app: FastAPI, first: bytes, repeated: bytes, answered: bool
) -> None:
    with serving(app) as url:
        with _connected(url) as endless:
            endless.sendall(POST)
            if answered:
                assert endless.recv(1 << 16).startswith(b"HTTP/1.1 401 ")
            endless.sendall(first)
            assert _accepted(endless, repeated) < ACCEPTED_BYTES
        assert _is_served(url)


def test_a_head_just_below_the_limit_is_answered_whatever_body_follows(app: FastAPI) -> None:
    body = b" " * (2 * HEAD_BYTES)
    head = (
        b"POST /v1/experiments HTTP/1.1\r\nHost: fedq\r\nConnection: close\r\nContent-Length: %d\r\nX-Long: "
        % len(body)
    )
    head += b"x" * (HEAD_BYTES - len(head) - 8)
    with serving(app) as url, _connected(url) as connection:
        connection.sendall(head)
        connection.sendall(b"\r\n\r\n" + body)
        assert _answer(connection).startswith(b"HTTP/1.1 401 ")
