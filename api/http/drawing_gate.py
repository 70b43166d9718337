"""One drawing at a time, awaited in the event loop: drawings that wait take no thread from other
requests.
"""

import gc
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, Lock, to_thread

Result = TypeVar("Result")


class DrawingGate:
    """Runs what draws, one after another.

    Owners take turns, so that one owner's backlog does not delay another's picture.
    """

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)
        self._owners: WeakValueDictionary[str, Lock] = WeakValueDictionary()

    async def run(self, owner: str, draw: Callable[[], Result]) -> Result:
        """Call `draw`, which reads what it draws itself: requests that wait hold no data."""
        async with self._owners.setdefault(owner, Lock()):
            return await to_thread.run_sync(partial(_call_and_collect, draw), limiter=self._limiter)


def _call_and_collect(draw: Callable[[], Result]) -> Result:
    """Free the figure at once: its objects refer to each other, and are too few to trigger the
    cyclic collector soon.

    `Figure.clear` does not do it: a legend keeps the renderer, with all pixels, in a cycle.
    """
    try:
        return draw()
    finally:
        gc.collect()
