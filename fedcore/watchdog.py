"""Watchdogs of the embedded stack: each process resets its own every second, and the supervisor replaces one that no longer does.

A reset is a byte in a pipe that the process inherits: neither a full disk nor a busy network holds it up. A process that was not
started by the supervisor has no watchdog.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

DESCRIPTOR = "FEDQ_WATCHDOG_FD"
"""The environment variable that says which descriptor the pipe has."""
PERIOD_S = 1.0
SILENT_S = 30.0
"""A process that does not reset its watchdog for this long hangs. The longest that a healthy one was seen to be busy is 10 s."""
START_S = 300.0
"""The same before the first reset: on a busy machine it takes long to load libraries."""
_LONGEST_LOOK_S = 1.0


class Watchdog:
    """The supervisor's side, for one process after another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader, self.writer = os.pipe()
        """`writer` is the descriptor that processes inherit."""
        # A process that writes while the supervisor is stopped must not wait for it.
        for descriptor in (self._reader, self.writer):
            os.set_blocking(descriptor, False)
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Watch a new process."""
        self._was_reset()
        self._looked_at = self._clock()
        self._silent_s = 0.0
        self._begun = False

    def reset(self) -> None:
        """Note that the process goes on, where it is asked and does not say so by itself."""
        self._silent_s = 0.0
        self._begun = True

    def expired(self) -> bool:
        """Whether the process hangs; to be called several times a second.

        A pause between two calls counts as a second at most: while the machine was suspended, or gave the supervisor no time, the
        process may have had none either.
        """
        now = self._clock()
        self._silent_s += min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        if self._was_reset():
            self.reset()
        return self._silent_s > (SILENT_S if self._begun else START_S)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self.writer)

    def _was_reset(self) -> bool:
        try:
            return bool(os.read(self._reader, 1 << 16))
        except BlockingIOError:
            return False


def resetter() -> Callable[[], None]:
    """Return what resets the watchdog of this process, to be called every PERIOD_S; without a watchdog it does nothing."""
    # Removed, so that programs that this process runs do not take the number for a descriptor of their own.
    inherited = os.environ.pop(DESCRIPTOR, None)
    if inherited is None:
        return lambda: None
    writer = int(inherited)

    def reset() -> None:
        # The pipe is full while the supervisor is stopped, and closed when it is gone.
        with suppress(OSError):
            os.write(writer, b".")

    return reset


def reset_from_thread() -> None:
    """Reset the watchdog from a thread of its own, for a process whose main loop belongs to a library."""

    def run(reset: Callable[[], None]) -> None:
        while True:
            reset()
            time.sleep(PERIOD_S)

    if DESCRIPTOR in os.environ:
        threading.Thread(target=run, args=[resetter()], name="watchdog", daemon=True).start()
