"""The lookout: an idle worker sees for itself that runs wait of which it hears nothing.

What carries nudges may go deaf without an error: a consumer that lost its broker for a while, or whoever should nudge. So a worker that is
idle while a run waits nudges its own queues. Where the broker takes the nudge, again and again, and none comes out at this end, the worker
ends, to be started again by what watches over it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

LOOK_S = 10.0
"""Between two looks; also how long a run has waited that should have been heard of."""
PATIENCE = 3
"""So many nudges of its own in a row are not heard before a worker is taken to be deaf: a busy one may hold back one of another."""

log = logging.getLogger(__name__)


class Lookout:
    """Looks from a thread of its own while its worker is idle. Make it after a fork."""

    def __init__(self, overlooked: Callable[[float], bool], nudge: Callable[[], bool], deaf: Callable[[], None]) -> None:
        """Starts nothing yet.

        `overlooked` says whether a run has waited for so many seconds, and may block; `nudge`, whether the broker has taken one;
        `deaf` ends the worker.
        """
        self._overlooked, self._nudge, self._deaf = overlooked, nudge, deaf
        self._unheard, self._busy = 0, False
        self._ended = Event()
        self._thread = Thread(target=self._run, name="lookout", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """A nudge has come; there is nothing to look out for until what it was about is done."""
        self._busy = True
        try:
            yield
        finally:
            self._unheard, self._busy = 0, False

    def look(self) -> None:
        """See whether nudges come through: once, as is done every LOOK_S seconds."""
        if self._busy or not self._overlooked(LOOK_S):
            self._unheard = 0
        elif self._unheard == PATIENCE:
            self._deaf()
        elif self._nudge():
            self._unheard += 1

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self.look()
            except Exception:
                log.exception("no look at what waits")
