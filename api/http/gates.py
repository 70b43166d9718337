"""Requests that take long: a few at a time, and of each owner or key one or two."""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, Lock, to_thread

Result = TypeVar("Result")
UPLOADS_AT_ONCE = 2
"""Uploads of one key that a process receives or checks at a time; others wait, their bodies unread."""


class OwnerGate:
    """Runs work in threads, at most `places` at a time and one for each owner; work that waits
    occupies no thread.

    Owners take turns, so that one owner's backlog does not delay another's request.
    """

    def __init__(self, places: int) -> None:
        self._limiter = CapacityLimiter(places)
        self._owners: WeakValueDictionary[str, Lock] = WeakValueDictionary()

    async def run(self, owner: str, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which reads its own data: waiting requests hold none."""
        async with self._owners.setdefault(owner, Lock()):
            return await to_thread.run_sync(work, limiter=self._limiter)


class UploadSlots:
    """Limit of concurrent uploads per key: before they are checked, no quota counts them.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._of_key: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, key_id: str) -> asyncio.Semaphore:
        """Return the slots of a key; they exist while a request holds or awaits one."""
        return self._of_key.setdefault(key_id, asyncio.Semaphore(UPLOADS_AT_ONCE))
