"""Detection of lost wake-ups: an idle worker sends itself messages, and ends when none of them arrives.

A consumer that lost its broker for a while may stop receiving without an error. Each worker has a queue
of its own for these messages, since one in a shared queue may go to any of its workers. A message that
arrives also makes the worker look for runs, so one whose wake-up was lost does not wait for the reconciler.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

PERIOD_S = 10.0
"""Seconds between two messages."""
MOST_UNANSWERED = 6
"""Unanswered messages after which a worker ends: Celery may wait 30 s before it connects to its broker again."""

log = logging.getLogger(__name__)


class WakeupMonitor:
    """A thread that checks, while its worker is idle, that messages reach it. Create it after a fork."""

    def __init__(self, send: Callable[[], bool], on_unreachable: Callable[[], None]) -> None:
        """Start nothing yet.

        `send` returns whether the broker took a message to this worker; `on_unreachable` ends the worker.
        """
        self._send, self._on_unreachable = send, on_unreachable
        self._unanswered, self._busy = 0, False
        self._ended = Event()
        self._thread = Thread(target=self._run, name="wake-up monitor", daemon=True)

    def start(self) -> None:
        """Begin to check."""
        self._thread.start()

    def stop(self) -> None:
        """Check no more."""
        self._ended.set()

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Suspend the check while the worker handles a message that has arrived."""
        self._busy = True
        try:
            yield
        finally:
            self._unanswered, self._busy = 0, False

    def check(self) -> None:
        """Send a message, or end the worker when the last ones did not arrive; called every PERIOD_S."""
        if self._busy:
            return
        if self._unanswered == MOST_UNANSWERED:
            self._on_unreachable()
        elif self._send():
            self._unanswered += 1

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            try:
                self.check()
            except Exception:
                log.exception("the check of whether messages arrive failed")
