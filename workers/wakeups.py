"""Wakes workers from a thread of its own, so that a slow or unreachable broker delays no caller."""

from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from workers.celery_app import send_wakeup

PATIENCE_S = 2.0
"""At the end, calls that have not gone out by then are left to the reconciler."""


class WakeupNotifier:
    """Takes calls at any time, from any thread. Make it after a fork."""

    def __init__(self, broker: str) -> None:
        """`broker` is a URL."""
        self._broker = broker
        self._calls: SimpleQueue[str | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="caller", daemon=True)
        self._thread.start()

    def notify(self, queues: Iterable[str]) -> None:
        """Have a worker of each of these queues nudged, soon.

        One nudge does for all calls that wait for it.
        """
        for queue in queues:
            self._calls.put(queue)

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Take no more calls; wait a little for those that were made."""
        self._calls.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        called: dict[str | None, None] = {}
        while None not in called:
            called = {self._calls.get(): None}
            with suppress(Empty):
                while True:
                    called[self._calls.get_nowait()] = None
            for queue in called:
                if queue is not None:
                    send_wakeup(queue, self._broker)
