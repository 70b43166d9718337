"""Queues, workers and health of the service."""

from datetime import datetime
from typing import Literal

from fedq.schemas.base import Schema


class QueueDepth(Schema):
    """Number of runs in a queue."""

    queue: str
    """Name of the queue."""
    queued: int
    """Runs waiting for a worker."""
    running: int
    """Runs in progress."""
    waiting: int
    """Runs waiting at a rung for the decision of a search."""
    paused: int
    """Paused runs."""
    too_large: int
    """Queued runs that need more memory than any active worker of the queue has; 0 if there are no
    workers.
    """
    rounds_left: int
    """Remaining rounds of queued and running runs."""


class Queues(Schema):
    """Queues with unfinished runs."""

    items: list[QueueDepth]
    """The queues; queues without unfinished runs are omitted."""


class Worker(Schema):
    """A worker process, as it last reported."""

    id: str
    """Name of the worker."""
    host: str
    """Host name."""
    pid: int
    """Process id."""
    queues: list[str]
    """The queues it serves."""
    device: str
    """Compute device."""
    memory_bytes: int | None
    """Memory limit for runs; null if unknown."""
    started_at: datetime
    """Start time."""
    seen_at: datetime
    """Time of the last heartbeat."""
    run_id: str | None
    """The run in progress."""


class Workers(Schema):
    """Active workers."""

    items: list[Worker]
    """The workers."""


class Health(Schema):
    """Liveness of the process."""

    status: Literal["ok"] = "ok"
    """Always `ok`."""
    version: str
    """FedQ's version."""


class Check(Schema):
    """Health of a dependency."""

    ok: bool
    """True if the dependency responds."""
    detail: str
    """Version or error."""


class Readiness(Schema):
    """Readiness of the service."""

    status: Literal["ready", "degraded", "unready"]
    """`degraded`: the broker is unavailable. Requests are served and runs continue, but start up to
    a few seconds later.
    """
    checks: dict[Literal["database", "broker"], Check]
    """Checks by dependency."""
