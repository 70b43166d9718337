"""Events of webhooks: every change of the status of an experiment or a run."""

from enum import StrEnum


class EventKind(StrEnum):
    """`<thing>.<status>`: a thing has come to have this status."""

    EXPERIMENT_QUEUED = "experiment.queued"
    """It was submitted; or it was resumed or retried before any of its runs had started."""
    EXPERIMENT_RUNNING = "experiment.running"
    """Its first run has started; or it goes on after it was paused or had ended."""
    EXPERIMENT_PAUSED = "experiment.paused"
    """Nothing of it runs or waits for a worker."""
    EXPERIMENT_SUCCEEDED = "experiment.succeeded"
    """Its runs have all succeeded."""
    EXPERIMENT_FAILED = "experiment.failed"
    """Its runs have all ended, one failed and none was cancelled."""
    EXPERIMENT_CANCELLED = "experiment.cancelled"
    """Its runs have all ended and one was cancelled."""
    RUN_QUEUED = "run.queued"
    """It waits for a worker: at first, after its turn when others wait, after a fault, or since it
    was resumed or retried.
    """
    RUN_RUNNING = "run.running"
    """A worker has taken it up, or taken it up again."""
    RUN_WAITING = "run.waiting"
    """It has come to a rung of its search, and waits for what becomes of its arm."""
    RUN_PAUSED = "run.paused"
    """It waits for `resume`."""
    RUN_SUCCEEDED = "run.succeeded"
    """It has done all its rounds, diverged or was stopped early."""
    RUN_FAILED = "run.failed"
    """It was given up after repeated faults."""
    RUN_CANCELLED = "run.cancelled"
    """A user has ended it."""


PING = "webhook.ping"
"""Test event, sent to a webhook regardless of the events that it subscribes to."""
ENDINGS = (EventKind.EXPERIMENT_SUCCEEDED, EventKind.EXPERIMENT_FAILED, EventKind.EXPERIMENT_CANCELLED)
"""Events of a webhook that names none."""
