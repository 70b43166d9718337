"""How a worker notices that something has stopped: its child, or the wake-ups it should receive.

The parent process kills a child that no longer makes progress (`ChildWatchdog`). An idle worker
polls for runs it was never notified about (`WakeupMonitor`).

A process that stops within a transaction keeps its locks: on SQLite nobody else can write until it
goes on or dies, on PostgreSQL its run cannot be taken from it. By then its lease is over, so
nothing is lost with it. A child may also say that it is of no use with this parent; then both end.

A consumer that lost its broker for a while may stop receiving without an error. Each worker has a
queue of its own for these messages, since one in a shared queue may go to any of its workers. A
message that arrives also makes the worker look for runs, so one whose wake-up was lost does not
wait for the reconciler.
"""

import logging
import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

_LOOKS = 10
_PID, _BEATS, _USELESS = 0, 1, 2

log = logging.getLogger(__name__)


class ChildWatchdog:
    """Counted by a thread in the child, watched by one in the parent; made before the fork.

    The two share memory, and no lock.
    """

    def __init__(self, patience_s: float) -> None:
        """A child without a pulse for so long is killed."""
        self._pause_s = patience_s / _LOOKS
        self._shared = memoryview(mmap.mmap(-1, 24)).cast("q")
        self._ended = threading.Event()

    def attach(self) -> None:
        """Of this process, the child: be watched from now on."""
        self._shared[_PID] = os.getpid()
        threading.Thread(target=self._count, name="pulse", daemon=True).start()

    def abort(self) -> None:
        """Of this process, the child: have the parent end, with this child, so that another worker
        is started in its place.
        """
        self._shared[_USELESS] = 1

    def detach(self) -> None:
        """Be watched no more."""
        self._shared[_PID] = 0
        self._ended.set()

    def start(self) -> None:
        """Of this process, the parent: watch whatever child begins."""
        threading.Thread(target=self._poll, name="watch", daemon=True).start()

    def kill(self) -> None:
        """End the child at once, in the parent."""
        if _is_ours(self._shared[_PID]):
            with suppress(ProcessLookupError):
                os.kill(self._shared[_PID], signal.SIGKILL)

    def _count(self) -> None:
        while not self._ended.wait(self._pause_s / 2):
            self._shared[_BEATS] += 1

    def _poll(self) -> None:
        # Looks are counted, not seconds: a parent that was still together with its child has
        # nothing to say.
        seen, still = (0, 0), 0
        while not self._ended.wait(self._pause_s):
            if self._shared[_USELESS]:
                self.kill()
                # Even where this is process 1 of a container, which no signal of its own ends.
                os._exit(1)
            now = self._shared[_PID], self._shared[_BEATS]
            seen, still = now, still + 1 if now == seen else 0
            if still == _LOOKS and _is_ours(now[_PID]):
                log.error(
                    "process %d has stopped and is killed; its runs are left to their leases", now[_PID]
                )
                self.kill()


def _is_ours(pid: int) -> bool:
    """True if `pid` is the child, in our process group.

    Once it is dead, and before another has begun in its place, the number may be another process's.
    """
    try:
        return pid != 0 and os.getpgid(pid) == os.getpgid(0)
    except ProcessLookupError:
        return False


PERIOD_S = 10.0
"""Seconds between two messages."""
MOST_UNANSWERED = 6
"""Unanswered messages after which a worker ends: Celery may wait 30 s before it connects to its
broker again.
"""


class WakeupMonitor:
    """A thread that checks, while its worker is idle, that messages reach it.

    Create it after a fork.
    """

    def __init__(self, send: Callable[[], bool], on_unreachable: Callable[[], None]) -> None:
        """Start nothing yet.

        `send` returns whether the broker took a message to this worker; `on_unreachable` ends the
        worker.
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
        """Send a message, or end the worker when the last ones did not arrive.

        Called every PERIOD_S.
        """
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
