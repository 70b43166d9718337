"""Waiting for something to become true, no longer than it takes."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def eventually(look: Callable[[], Found | None], timeout_s: float = 10.0, every_s: float = 0.02) -> Found:
    """The first true value that `look` returns; fails the test when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"nothing came of {look} within {timeout_s} s"
        time.sleep(every_s)
