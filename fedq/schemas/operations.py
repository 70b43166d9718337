"""The service itself: queues, workers, health."""

from datetime import datetime
from typing import Literal

from fedq.schemas.base import Schema


class QueueDepth(Schema):
    """What one queue holds."""

    queue: str
    """Its name."""
    queued: int
    """Runs that wait for a worker."""
    running: int
    """Runs that a worker has."""
    waiting: int
    """Runs that wait at a rung of their search for what becomes of their arm."""
    paused: int
    """Runs that wait for `resume`."""
    too_large: int
    """Of those that wait, how many need more memory than any worker of the queue that is there; 0 while none is."""
    rounds_left: int
    """Rounds to do in the runs that wait for a worker or run."""


class Queues(Schema):
    """What waits and what runs."""

    items: list[QueueDepth]
    """By queue; a queue without unfinished runs is left out."""


class Worker(Schema):
    """A worker process, as it last reported."""

    id: str
    """Its name."""
    host: str
    """The machine."""
    pid: int
    """The process."""
    queues: list[str]
    """The queues it serves."""
    device: str
    """Where it computes."""
    memory_bytes: int | None
    """It takes no run that needs more; null where it has not said."""
    started_at: datetime
    """When it started."""
    seen_at: datetime
    """When it last reported."""
    run_id: str | None
    """The run it has now."""


class Workers(Schema):
    """The workers that have reported of late."""

    items: list[Worker]
    """The workers."""


class Health(Schema):
    """The process is alive."""

    status: Literal["ok"] = "ok"
    """Always `ok`."""
    version: str
    """FedQ's version."""


class Check(Schema):
    """One thing the service leans on."""

    ok: bool
    """It answers."""
    detail: str
    """What it is, or what went wrong."""


class Readiness(Schema):
    """Whether requests can be served."""

    status: Literal["ready", "degraded", "unready"]
    """`degraded`: the broker is away; requests are served and runs go on, but start up to a few seconds later."""
    checks: dict[Literal["database", "broker"], Check]
    """By what was checked."""
