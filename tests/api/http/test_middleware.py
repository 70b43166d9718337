"""A body that arrives too slowly is answered with 408.

A slow application is not the client's fault.
"""

import asyncio
import base64
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI, Request

from api.http import problems
from api.http.middleware import HEADERS, SLOWEST_RATE, BodyTimeout
from fedcore.settings import Settings
from tests.builders.specifications import TINY
from tests.support.asgi import application, calling
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


# Headers that keep browsers from misusing a response.

SECRET = "hunter2"


@pytest.mark.parametrize(
    "path", ["/v1/experiments", "/v1/experiments/exp_0", "/nowhere", "/healthz", "/docs", "/openapi.json"]
)
def test_every_answer_carries_them(http: httpx.Client, path: str) -> None:
    headers = http.get(path).headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_answers_about_anybodys_work_are_not_kept_by_shared_caches(http: httpx.Client) -> None:
    assert http.get("/v1/experiments").headers["cache-control"] == "private, no-cache"
    assert http.get("/v1/experiments/exp_0").headers["cache-control"] == "no-store"
    assert http.post("/v1/keys", json={"owner": "ann"}).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_pages_run_the_scripts_they_were_made_with_and_no_others(http: httpx.Client, path: str) -> None:
    page = http.get(path)
    policy = page.headers["content-security-policy"]
    inline = [
        script
        for script in re.findall(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", page.text, re.DOTALL)
        if script.strip()
    ]
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    assert allowed == {
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in inline
    }
    (scripts,) = re.findall(r"script-src ([^;]*)", policy)
    assert "unsafe" not in scripts
    assert "http" not in policy


def test_a_foreign_page_can_neither_read_nor_send(http: httpx.Client, admin_key: str) -> None:
    foreign = {"Origin": "https://evil.example"}
    assert not [
        name
        for name in http.get("/v1/experiments", headers=foreign).headers
        if name.startswith("access-control")
    ]
    preflight = http.options("/v1/experiments", headers=foreign | {"Access-Control-Request-Method": "POST"})
    assert preflight.status_code == 405
    # What a page can make a browser send without asking: cookies, and forms of these types.
    with_cookie = {"Authorization": "", "Cookie": f"key={admin_key}; authorization=Bearer {admin_key}"}
    assert http.post("/v1/experiments", json=TINY, headers=with_cookie).status_code == 401
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert (
            http.post("/v1/experiments", content=b"{}", headers={"Content-Type": media_type}).status_code
            == 415
        )
    assert "set-cookie" not in http.get("/docs").headers


def test_readiness_tells_no_password_of_what_it_leans_on(tmp_path: Path) -> None:
    settings = Settings(
        _env_file=None,
        home=tmp_path,
        database_url=f"postgresql://fedq:{SECRET}@127.0.0.1:1/fedq",
        broker_url=f"redis://:{SECRET}@127.0.0.1:1/0",
        api_key=f"fq_{'0' * 26}_{SECRET}",
    )
    with calling(application(settings)) as http:
        for path in ("/readyz", "/metrics", "/openapi.json", "/v1/experiments"):
            assert SECRET not in http.get(path).text
