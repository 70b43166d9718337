"""The data of server-sent events."""

from datetime import datetime

from fedcore.platform.status import Status
from fedq.schemas.base import Schema
from fedq.schemas.runs import RoundRow
from fedq.schemas.search import ArmArrival


class RoundEvent(RoundRow):
    """`event: round`: a round of a run was committed."""

    run_id: str
    """The run."""


class StatusEvent(Schema):
    """`event: status`: the experiment, or one of its runs, changed its status."""

    experiment_id: str
    """The experiment."""
    run_id: str | None
    """The run; null when it is the experiment's own status. The stream ends after the experiment's final one."""
    status: Status
    """What it is now; one that lasted a moment only may never be told."""
    rounds_done: int | None
    """Rounds the run has committed; null for the experiment."""


class DecisionEvent(ArmArrival):
    """`event: decision`: a search promoted or stopped an arm."""

    experiment_id: str
    """The experiment."""


class HeartbeatEvent(Schema):
    """`event: heartbeat`: nothing happened, the connection stands."""

    time: datetime
    """By the service's clock."""
