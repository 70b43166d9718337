"""Telling workers that something waits, once the response has left."""

from collections.abc import Callable
from typing import Annotated

from fastapi import BackgroundTasks, Depends

from api.dependencies import Configuration
from workers.app import wake

Waker = Callable[[str], None]


async def _waker(tasks: BackgroundTasks, settings: Configuration) -> Waker:
    """Call it with a queue after the commit; a broker that is away holds nothing up, since the reconciler nudges too."""
    return lambda queue: tasks.add_task(wake, queue, settings.broker)


Wake = Annotated[Waker, Depends(_waker)]
