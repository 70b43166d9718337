"""Wake-ups of workers, sent after the response."""

from collections.abc import Callable
from typing import Annotated

from anyio import CapacityLimiter, Semaphore, current_time, sleep, to_thread
from fastapi import BackgroundTasks, Depends

from api.http.dependencies import AppStateDep
from workers.celery_app import send_wakeup

MAX_AT_ONCE = 4
APART_S = 0.02
"""Minimum time between wake-ups of one queue: one takes as long as half a request."""
MAX_QUEUES = 1_000


class Waker:
    """Wakes workers on a few threads of its own, since a broker that hangs must not block the
    threads that serve requests.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._turns, self._threads = Semaphore(MAX_AT_ONCE), CapacityLimiter(MAX_AT_ONCE)
        self._waiting: set[str] = set()
        self._due: dict[str, float] = {}
        """Earliest time of the next wake-up, by queue."""

    async def wake(self, queue: str) -> None:
        """Wake a worker of `queue`; never raises.

        Requests that arrive while a wake-up of the same queue is pending need none of their own.
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
