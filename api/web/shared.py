"""What many pages ask for at once: made once, and handed to all that ask within a moment."""

from collections.abc import Callable, Hashable
from threading import Lock
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

MAX_KEPT = 1_000

Value = TypeVar("Value")


class _Made(NamedTuple, Generic[Value]):
    until: float
    value: Value


class Shared(Generic[Value]):
    """Values by key, each for so many seconds. Changes in place; of one application."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s, self._made, self._locks = lasts_s, dict[Hashable, _Made[Value]](), dict[Hashable, Lock]()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of `key`, made by `make` unless one was a moment ago; those that ask meanwhile wait for it."""
        if len(self._locks) >= MAX_KEPT:
            self._locks, self._made = {}, {}
        with self._locks.setdefault(key, Lock()):
            known = self._made.get(key)
            if known is None or known.until < monotonic():
                known = _Made(monotonic() + self._lasts_s, make())
                self._made[key] = known
            return known.value
