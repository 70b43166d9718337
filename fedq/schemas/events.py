"""Data of server-sent events."""

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
    """The run; null for the status of the experiment. The stream ends after the final status of the
    experiment.
    """
    status: Status
    """The new status. A status that lasted only briefly may be skipped."""
    rounds_done: int | None
    """Committed rounds of the run; null for the experiment."""


class DecisionEvent(ArmArrival):
    """`event: decision`: a search promoted or stopped an arm."""

    experiment_id: str
    """The experiment."""


class HeartbeatEvent(Schema):
    """`event: heartbeat`: sent while nothing happens, to keep the connection alive."""

    time: datetime
    """Time of the service's clock."""
