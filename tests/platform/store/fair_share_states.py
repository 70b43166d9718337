"""The model that any history of the store is held against: what must be known of each run, and
which ways a status may go.
"""

from dataclasses import dataclass

from fedcore.platform.store import RunRequest, Status
from fedcore.platform.store.leases import Claim

APPLIED = {
    RunRequest.NONE: Status.QUEUED,
    RunRequest.PAUSE: Status.PAUSED,
    RunRequest.CANCEL: Status.CANCELLED,
}
ARROWS = {
    Status.QUEUED: {Status.RUNNING, Status.PAUSED, Status.CANCELLED},
    Status.RUNNING: {Status.QUEUED, Status.PAUSED, Status.CANCELLED, Status.FAILED, Status.SUCCEEDED},
    Status.PAUSED: {Status.QUEUED, Status.CANCELLED},
    Status.FAILED: {Status.QUEUED},
    Status.CANCELLED: {Status.QUEUED},
    Status.SUCCEEDED: set[Status](),
}
"""Where the status of a run may go in one transaction."""


@dataclass
class Book:
    """Expected state of a run."""

    experiment_id: str
    status: Status = Status.QUEUED
    done: int = 0
    fence: int = 0
    request: RunRequest = RunRequest.NONE
    attempts: int = 0
    expired: bool = False
    priority: int = 5
    gone: bool = False
    """Deleted with its experiment."""

    def holds(self, held: Claim) -> bool:
        """True if this claim holds the run."""
        return not self.gone and self.status is Status.RUNNING and self.fence == held.fence

    def stop(self, wish: RunRequest) -> None:
        """Its experiment was paused or cancelled."""
        if self.status is Status.RUNNING and self.request is not RunRequest.CANCEL:
            self.request = wish
        elif self.status is Status.QUEUED or (self.status is Status.PAUSED and wish is RunRequest.CANCEL):
            self.status = APPLIED[wish]

    def go_on(self, wish: RunRequest) -> None:
        """Its experiment was resumed, after a pause, or retried, after a cancel."""
        if self.request is wish:
            self.request = RunRequest.NONE
        elif self.status is APPLIED[wish]:
            self.status = Status.QUEUED
            self.attempts = self.attempts if wish is RunRequest.PAUSE else 0
        elif self.status is Status.FAILED and wish is RunRequest.CANCEL:
            self.status, self.attempts = Status.QUEUED, 0

    def release(self, status: Status) -> None:
        self.status, self.request = status, RunRequest.NONE

    def lose(self, max_attempts: int) -> None:
        """The claim ended badly."""
        hopeless = self.request is RunRequest.NONE and self.attempts >= max_attempts
        self.release(Status.FAILED if hopeless else APPLIED[self.request])
