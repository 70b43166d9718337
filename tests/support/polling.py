"""Waiting for something to become true, no longer than it takes."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def eventually(look: Callable[[], Found | None], timeout_s: float = 60.0, every_s: float = 0.05) -> Found:
    """The first true value that `look` returns; fails the test when there is none in time.

    It is asked less and less often.
    """
    deadline, pause_s = time.monotonic() + timeout_s, every_s / 16
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"nothing came of {look} within {timeout_s} s"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, every_s)
