"""Wakes workers from a thread, so that a slow or unreachable broker delays no caller.

A wake-up is a hint that runs are queued, and may be lost: the reconciler repeats it. The API, the
workers and the reconciler send theirs through one `WakeupNotifier` each.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from urllib.parse import urlsplit

from fedcore.errors import SettingsError
from fedcore.lazy import transport

CLOSE_S = 2.0
"""At the end, wake-ups that have not gone out by then are left to the reconciler."""


class WakeupNotifier:
    """Sends wake-ups in the background; its thread starts with the first, so after a fork."""

    def __init__(self, send: Callable[[str], object]) -> None:
        """`send` wakes a worker of a queue, may take seconds, and never raises."""
        self._send = send
        self._queues: SimpleQueue[str | None] = SimpleQueue()
        self._starting = Lock()
        self._thread: Thread | None = None

    def notify(self, queues: Iterable[str]) -> None:
        """Wake a worker of each of these queues, soon; pending wake-ups of a queue are coalesced."""
        for queue in queues:
            self._queues.put(queue)
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="wake-ups", daemon=True)
                self._thread.start()

    def close(self, patience_s: float = CLOSE_S) -> None:
        """Send no more; wait a little for pending wake-ups."""
        self._queues.put(None)
        with self._starting:
            if self._thread is not None:
                self._thread.join(patience_s)

    def _run(self) -> None:
        pending: dict[str | None, None] = {}
        while None not in pending:
            pending = {self._queues.get(): None}
            with suppress(Empty):
                while True:
                    pending[self._queues.get_nowait()] = None
            for queue in pending:
                if queue is not None:
                    self._send(queue)


def require_broker(url: str) -> None:
    """Raise SettingsError if no broker can be at `url`; one that is away may come back.

    The URL, which may hold a password, is not shown.
    """
    reason = None
    for one in url.split(";"):  # of Sentinel
        kind, separator, _ = one.partition("://")
        if not separator:
            reason = "is no URL"
        elif kind.partition("+")[0] not in transport.TRANSPORT_ALIASES:
            reason = f"{kind} is no kind of broker"
        else:
            try:
                _ = urlsplit(one).port
            except ValueError:
                reason = "the port is not a number (in a password, write / as %2F and @ as %40)"
    if reason is not None:
        raise SettingsError(f"FEDQ_BROKER_URL: {reason}; give, e.g., redis://HOST:6379/0")
