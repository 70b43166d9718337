"""The pulse of a worker's child, by which its parent sees that it goes on; one that has stopped is killed.

A process that stops within a transaction keeps its locks: on SQLite nobody else can write until it goes on or dies, on PostgreSQL
its run cannot be taken from it. By then its lease is over, so nothing is lost with it. A child may also say that it is of no use with
this parent; then both end.
"""

import logging
import mmap
import os
import signal
import threading
from contextlib import suppress

_LOOKS = 10
_PID, _BEATS, _USELESS = 0, 1, 2

log = logging.getLogger(__name__)


class Pulse:
    """Counted by a thread in the child, watched by one in the parent; made before the fork. The two share memory, and no lock."""

    def __init__(self, patience_s: float) -> None:
        """A child without a pulse for so long is killed."""
        self._pause_s = patience_s / _LOOKS
        self._shared = memoryview(mmap.mmap(-1, 24)).cast("q")
        self._ended = threading.Event()

    def begin(self) -> None:
        """Of this process, the child: be watched from now on."""
        self._shared[_PID] = os.getpid()
        threading.Thread(target=self._count, name="pulse", daemon=True).start()

    def give_up(self) -> None:
        """Of this process, the child: have the parent end, with this child, so that another worker is started in its place."""
        self._shared[_USELESS] = 1

    def end(self) -> None:
        """Be watched no more."""
        self._shared[_PID] = 0
        self._ended.set()

    def watch(self) -> None:
        """Of this process, the parent: watch whatever child begins."""
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def kill(self) -> None:
        """End the child at once, in the parent."""
        if _is_ours(self._shared[_PID]):
            with suppress(ProcessLookupError):
                os.kill(self._shared[_PID], signal.SIGKILL)

    def _count(self) -> None:
        while not self._ended.wait(self._pause_s / 2):
            self._shared[_BEATS] += 1

    def _look(self) -> None:
        # Looks are counted, not seconds: a parent that was still together with its child has nothing to say.
        seen, still = (0, 0), 0
        while not self._ended.wait(self._pause_s):
            if self._shared[_USELESS]:
                self.kill()
                # Even where this is process 1 of a container, which no signal of its own ends.
                os._exit(1)
            now = self._shared[_PID], self._shared[_BEATS]
            seen, still = now, still + 1 if now == seen else 0
            if still == _LOOKS and _is_ours(now[_PID]):
                log.error("process %d has stopped and is killed; its runs are left to their leases", now[_PID])
                self.kill()


def _is_ours(pid: int) -> bool:
    """Whether this is the child, in our group; where it is dead, and none has begun in its place, the number may be another's by now."""
    try:
        return pid != 0 and os.getpgid(pid) == os.getpgid(0)
    except ProcessLookupError:
        return False
