"""A receiver of webhooks on this machine, well-behaved or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from threading import Event, Thread
from typing import ClassVar

LOOPBACK = (ip_network("127.0.0.0/8"),)


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    """By their names in lower case."""
    body: str


@dataclass
class Receiver:
    """Deliveries received so far. `/500` is answered with that status, other paths by the names of
    `_Handler`.
    """

    url: str = ""
    received: list[Received] = field(default_factory=list)
    released: Event = field(default_factory=Event)
    """Set, and whoever hangs is let go."""


class _Handler(BaseHTTPRequestHandler):
    receiver: ClassVar[Receiver]

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.receiver.received.append(Received(self.path, headers, self.rfile.read(length).decode()))
        way = self.path.strip("/")
        if way.isdecimal():
            self._answer(int(way), f"that was {way}")
        else:
            getattr(self, f"_{way}")()

    def _ok(self) -> None:
        self._answer(200, "thanks \0 " + "x" * 5_000)

    def _busy(self) -> None:
        self._answer(503, "later", ("Retry-After", "7200"))

    def _redirect(self) -> None:
        self._answer(307, "", ("Location", f"{self.receiver.url}/ok"))

    def _huge(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.receiver.released.is_set():
            self.wfile.write(b"x" * 65_536)

    def _long_head(self) -> None:
        self.send_response(200)
        while not self.receiver.released.is_set():
            self.wfile.write(b"X-Filler: " + b"x" * 1_000 + b"\r\n")

    def _hang(self) -> None:
        self.receiver.released.wait(60)

    def _drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.receiver.released.wait(0.05):
            self.wfile.write(b"x")

    def _nonsense(self) -> None:
        self.wfile.write(b"no HTTP at all\r\n\r\n")

    def _answer(self, code: int, text: str, *headers: tuple[str, str]) -> None:
        self.send_response(code)
        for name, value in (*headers, ("Content-Length", str(len(text)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_request(self, *_about: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever is hung up on says nothing."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens on loopback."""
    receiver = Receiver()
    with _Server(("127.0.0.1", 0), type("_Own", (_Handler,), {"receiver": receiver})) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.shutdown()
            thread.join()
