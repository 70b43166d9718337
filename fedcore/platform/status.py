"""The words for where an experiment or a run stands, and for how severe a line of its log is."""

from enum import StrEnum


class Status(StrEnum):
    """Where an experiment or a run stands; an experiment's follows from its runs'."""

    QUEUED = "queued"
    """Waits for a worker; an experiment: none of its runs has started yet."""
    RUNNING = "running"
    """A worker holds its lease; an experiment: some of its runs have started and some are not
    done.
    """
    AT_RUNG = "waiting"
    """Has come to a rung of its search, and no worker holds it until its arm is promoted or
    stopped. Of a run only.
    """
    PAUSED = "paused"
    """Waits for `resume`; an experiment: nothing of it runs or waits for a worker."""
    SUCCEEDED = "succeeded"
    """The run has done all its rounds, diverged or was stopped early; an experiment: all of its
    runs succeeded.
    """
    FAILED = "failed"
    """Gave up after repeated faults; an experiment: all of its runs have ended, one failed and none
    was cancelled.
    """
    CANCELLED = "cancelled"
    """Ended by a user; an experiment: all of its runs have ended and one was cancelled."""


ENDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})
"""Statuses that only `retry` leaves."""


UNSTARTED = (Status.QUEUED, Status.PAUSED)
"""Statuses of runs that no worker holds and that may start."""


class RunRequest(StrEnum):
    """Request of a user for a running run, applied at the next round boundary."""

    NONE = "none"
    """Nothing."""
    PAUSE = "pause"
    """Stop, and go on when resumed."""
    CANCEL = "cancel"
    """Stop for good."""


class WorkerDirective(StrEnum):
    """Next step of a worker after a slice; for all but CONTINUE it releases the run."""

    CONTINUE = "continue"
    """Go on with the next slice."""
    YIELD = "yield"
    """Another run comes first."""
    PAUSE = "pause"
    """The user paused the run."""
    CANCEL = "cancel"
    """The user cancelled the run."""


class DeliveryStatus(StrEnum):
    """Where a delivery of a webhook stands."""

    PENDING = "pending"
    """It waits to be sent, or to be sent again."""
    DELIVERED = "delivered"
    """The receiver has answered that it has it."""
    FAILED = "failed"
    """It was given up."""


class LogLevel(StrEnum):
    """Severity of a log line, in ascending order."""

    DEBUG = "debug"
    """Details for developers."""
    INFO = "info"
    """Ordinary events."""
    WARNING = "warning"
    """Unexpected, but handled."""
    ERROR = "error"
    """Something failed."""
    CRITICAL = "critical"
    """The process cannot go on."""

    @property
    def and_above(self) -> tuple["LogLevel", ...]:
        """This level and all that are more severe."""
        levels = tuple(LogLevel)
        return levels[levels.index(self) :]
