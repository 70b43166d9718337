"""A connection that fails: a proxy on a real socket that loses requests, loses answers, breaks off in
the middle of one, or answers that the service is unavailable.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import urlparse

PIECE_BYTES = 65_536
PROBLEM = (
    b'{"type": "about:blank", "title": "Service Unavailable", "status": 503, "instance": "/", "errors": [],'
    b' "detail": "The database is unavailable. Try again."}'
)
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(PROBLEM), PROBLEM)
)
"""Answer of a service whose database is unavailable."""


class Fault(Enum):
    """Fate of a connection."""

    REFUSED = auto()
    """It is closed before the request is read."""
    ANSWER_LOST = auto()
    """The service gets the request, and its answer is thrown away."""
    CUT = auto()
    """Some of the answer arrives."""
    UNAVAILABLE = auto()
    """Nothing reaches the service; the answer is UNAVAILABLE."""


@dataclass
class Proxy:
    """Passes connections on; the next ones suffer `faults`, in turn. Changes in place."""

    url: str
    target: tuple[str, int]
    faults: list[Fault]
    cut_after: int = 2_000
    """Bytes of the answer that arrive of a CUT connection."""
    blocks: bytes = b""
    """A request that contains this breaks its connection, if it is not empty."""
    connections: int = 0
    _open: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a connection learns its fate: `fail` breaks it, or it suffers one of the faults."""

    def fail(self, *faults: Fault) -> None:
        """Break all connections; the next ones suffer `faults`."""
        with self._lock:
            self.faults += faults
            for side in self._open:
                _end(side)
            self._open.clear()

    def handle(self, client: socket.socket) -> None:
        """Serve one connection."""
        with client, socket.create_connection(self.target) as service, suppress(OSError):
            with self._lock:
                self.connections += 1
                fault = self.faults.pop(0) if self.faults else None
                self._open += client, service
            if fault is Fault.REFUSED:
                return
            if fault is Fault.UNAVAILABLE:
                client.recv(PIECE_BYTES)
                client.sendall(UNAVAILABLE)
                return
            threading.Thread(target=self._pass_up, args=(client, service), daemon=True).start()
            match fault:
                case Fault.ANSWER_LOST:
                    service.recv(PIECE_BYTES)
                case Fault.CUT:
                    _pump(service, client, self.cut_after)
                case _:
                    _pump(service, client)
            # A thread still reads from both: closing alone would not end the connections.
            for side in (client, service):
                _end(side)

    def _pass_up(self, client: socket.socket, service: socket.socket) -> None:
        _pump(client, service, forbidden=self.blocks)
        for side in (client, service):
            _end(side)


@contextmanager
def proxied(url: str, *faults: Fault) -> Iterator[Proxy]:
    """A proxy before the service at `url`."""
    target = urlparse(url)
    assert target.hostname is not None
    assert target.port is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(
            f"http://127.0.0.1:{listener.getsockname()[1]}", (target.hostname, target.port), list(faults)
        )
        threading.Thread(target=_accept, args=(listener, proxy), daemon=True).start()
        yield proxy
        # Wakes the thread that waits for connections.
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, proxy: Proxy) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=proxy.handle, args=(client,), daemon=True).start()


def _end(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)


def _pump(
    source: socket.socket, sink: socket.socket, limit: int | None = None, forbidden: bytes = b""
) -> None:
    """Pass bytes on until the source ends, `limit` of them are through, or they are `forbidden`."""
    with suppress(OSError):
        passed = 0
        while (limit is None or passed < limit) and (piece := source.recv(PIECE_BYTES)):
            if forbidden and forbidden in piece:
                return
            piece = piece if limit is None else piece[: limit - passed]
            sink.sendall(piece)
            passed += len(piece)
