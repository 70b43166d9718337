"""Telling workers that something waits, once the response has left."""

from collections.abc import Callable
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import BackgroundTasks, Depends, Request

from api.dependencies import Configuration
from workers.app import wake

MAX_AT_ONCE = 4
"""Threads of their own: a broker that hangs must not take up those that serve requests."""

Waker = Callable[[str], None]


async def _waker(request: Request, tasks: BackgroundTasks, settings: Configuration) -> Waker:
    """Call it with a queue after the commit; a broker that is away holds nothing up, since the reconciler nudges too."""
    limiter: CapacityLimiter = request.app.state.wakers
    return lambda queue: tasks.add_task(_publish, queue, settings.broker, limiter)


async def _publish(queue: str, broker: str, limiter: CapacityLimiter) -> None:
    await to_thread.run_sync(wake, queue, broker, limiter=limiter)


Wake = Annotated[Waker, Depends(_waker)]
