"""Watchdogs of the embedded stack, by which its supervisor tells that a process hangs.

Each process resets its watchdog every second: it writes a byte to a pipe that it inherits, which
neither a full disk nor a busy network holds up. A process that the supervisor has not started has
no watchdog.
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

DESCRIPTOR = "FEDQ_WATCHDOG_FD"
"""The environment variable that says which descriptor the pipe has."""
PERIOD_S = 1.0
SILENT_S = 30.0
"""A process that does not reset its watchdog for this long hangs.

The longest that a request was measured to hold up a healthy API is 9 s.
"""
START_S = 300.0
"""Time until a watchdog must be reset first: on a busy machine, libraries take long to load."""
_LONGEST_LOOK_S = 1.0
_PR_SET_PDEATHSIG = 1


def end_with_parent(signum: signal.Signals = signal.SIGKILL) -> None:
    """Have Linux send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum))


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
        """True if the process hangs; to be called several times a second.

        A pause between two calls counts as a second at most: while the machine was suspended, or
        gave the supervisor no time, the process may have had none either.
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


def make_resetter() -> Callable[[], None]:
    """Return a function that resets the watchdog of this process, to be called every PERIOD_S.

    Without a watchdog it does nothing.
    """
    # Removed: programs that this process runs would take the number for a descriptor of theirs.
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
    """Reset the watchdog from a thread of its own, for a process whose main loop belongs to a
    library.
    """

    def run(reset: Callable[[], None]) -> None:
        while True:
            reset()
            time.sleep(PERIOD_S)

    if DESCRIPTOR in os.environ:
        threading.Thread(target=run, args=[make_resetter()], name="watchdog", daemon=True).start()
