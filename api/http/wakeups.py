"""Telling workers that something waits, once the response has left."""

from collections.abc import Callable
from typing import Annotated

from anyio import CapacityLimiter, Semaphore, current_time, sleep, to_thread
from fastapi import BackgroundTasks, Depends

from api.http.dependencies import AppStateDep
from workers.celery_app import send_wakeup

MAX_AT_ONCE = 4
APART_S = 0.02
"""Nudges of one queue are at least so far apart: one takes as long as it takes to answer half a
request.
"""
MAX_QUEUES = 1_000


class Waker:
    """Nudges workers, on a few threads of their own: a broker that hangs must not take up all those
    that serve requests.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._turns, self._threads = Semaphore(MAX_AT_ONCE), CapacityLimiter(MAX_AT_ONCE)
        self._waiting: set[str] = set()
        self._due: dict[str, float] = {}
        """When each queue may be nudged again."""

    async def wake(self, queue: str) -> None:
        """Nudge a worker of `queue`; never raises.

        One nudge that waits for its turn does for all that would wait behind it.
        """
        if queue in self._waiting:
            return
        self._waiting.add(queue)
        await sleep(max(0.0, self._due.get(queue, 0.0) - current_time()))
        async with self._turns:
            self._waiting.discard(queue)
            if len(self._due) >= MAX_QUEUES:
                self._due.clear()
            self._due[queue] = current_time() + APART_S
            await to_thread.run_sync(send_wakeup, queue, self._broker, limiter=self._threads)


async def _wake_later(state: AppStateDep, tasks: BackgroundTasks) -> Callable[[str], None]:
    """Call it with a queue after the commit.

    An unreachable broker delays nothing, since the reconciler wakes workers too.
    """
    return lambda queue: tasks.add_task(state.waker.wake, queue)


Wake = Annotated[Callable[[str], None], Depends(_wake_later)]
