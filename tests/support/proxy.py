"""A connection that fails: a proxy on a real socket that loses requests, loses answers, or breaks
off in the middle of one.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import urlparse

PIECE_BYTES = 65_536


class Fault(Enum):
    """Fate of a connection."""

    REFUSED = auto()
    """It is closed before the request is read."""
    ANSWER_LOST = auto()
    """The service gets the request, and its answer is thrown away."""
    CUT = auto()
    """Some of the answer arrives."""


@dataclass
class Proxy:
    """Passes connections on; the next ones suffer `faults`, in turn. Changes in place."""

    url: str
    target: tuple[str, int]
    faults: list[Fault]
    cut_after: int = 2_000
    """Bytes of the answer that arrive of a CUT connection."""
    connections: int = 0

    def handle(self, client: socket.socket) -> None:
        """Serve one connection."""
        self.connections += 1
        fault = self.faults.pop(0) if self.faults else None
        with client, socket.create_connection(self.target) as service, suppress(OSError):
            if fault is Fault.REFUSED:
                return
            upward = threading.Thread(target=_pump, args=(client, service), daemon=True)
            upward.start()
            match fault:
                case Fault.ANSWER_LOST:
                    service.recv(PIECE_BYTES)
                case Fault.CUT:
                    _pump(service, client, self.cut_after)
                case _:
                    _pump(service, client)
            # A thread still reads from both: closing alone would not end the connections.
            for side in (client, service):
                side.shutdown(socket.SHUT_RDWR)


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


def _pump(source: socket.socket, sink: socket.socket, limit: int | None = None) -> None:
    """Pass bytes on until the source ends, or `limit` of them are through."""
    with suppress(OSError):
        passed = 0
        while (limit is None or passed < limit) and (piece := source.recv(PIECE_BYTES)):
            piece = piece if limit is None else piece[: limit - passed]
            sink.sendall(piece)
            passed += len(piece)
