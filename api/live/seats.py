"""How many event streams a key holds open: each takes a seat, of which a key has so many in each process."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fedcore.errors import RateError

WAIT_S = 5


class Seats:
    """The seats of an application. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        """A key may have `most` of them; 0: as many as it likes."""
        self._most = most
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_of(self, key_id: str) -> Iterator[None]:
        """A seat of this key; raises RateError when it has no more."""
        if self._most and self._taken[key_id] >= self._most:
            allowed = f"{self._most} event streams open at once (FEDQ_STREAMS_MAX)"
            raise RateError(f"this key may hold {allowed}; close one, or try again in {WAIT_S} s", WAIT_S)
        self._taken[key_id] += 1
        try:
            yield
        finally:
            self._taken[key_id] -= 1
            self._taken += Counter()  # Without those who have none any more.
