"""A server that answers slowly: a proxy before it holds each piece of an answer back for a
while.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

AT_ONCE = 65_536


@dataclass
class Slowness:
    """Passes connections on. Changes in place."""

    connect: Callable[[], socket.socket]
    pause_s: float
    at_once: int
    """Bytes of an answer that arrive together, after each pause."""
    _over: threading.Event = field(default_factory=threading.Event)
    _sides: list[socket.socket] = field(default_factory=list)

    def serve(self, door: socket.socket) -> None:
        """Take connections at `door` until that is shut."""
        with suppress(OSError):
            while True:
                client, _ = door.accept()
                # Noted first: where the server is gone, `end` closes it all the same.
                self._sides.append(client)
                server = self.connect()
                self._sides.append(server)
                threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
                threading.Thread(target=self._drip, args=(server, client), daemon=True).start()

    def end(self) -> None:
        """Break all connections off."""
        self._over.set()
        for side in self._sides:
            _shut(side)
            side.close()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while piece := client.recv(AT_ONCE):
                server.sendall(piece)
        _shut(server)

    def _drip(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(self.at_once):
                self._over.wait(self.pause_s)
                client.sendall(piece)
        _shut(client)


@contextmanager
def slowed(
    door: socket.socket, connect: Callable[[], socket.socket], pause_s: float, at_once: int = AT_ONCE
) -> Iterator[None]:
    """Whoever connects to the listening `door` reaches the server that `connect` connects to, and
    waits for its answers.
    """
    slowness = Slowness(connect, pause_s, at_once)
    with ExitStack() as stack:
        stack.enter_context(door)
        stack.callback(slowness.end)
        # Wakes the thread that waits for connections.
        stack.callback(_shut, door)
        threading.Thread(target=slowness.serve, args=(door,), daemon=True).start()
        yield


def _shut(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
