"""A census: what there is at one moment, in few and cheap queries, for whoever watches the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import deliveries, tally, workers
from fedcore.platform.store.clock import now
from fedcore.platform.store.deliveries import Backlog
from fedcore.platform.store.tables import RunRecord, WorkerRecord


class Group(NamedTuple):
    """The runs of one queue and status."""

    queue: str
    status: Status
    runs: int
    longest_s: float
    """Since the one of them that joined its queue first did so."""


@dataclass(frozen=True, slots=True)
class Census:
    """What there is."""

    groups: Sequence[Group]
    workers: Sequence[WorkerRecord]
    totals: dict[str, float]
    """What was counted in all, by the names of `tally`."""
    backlog: Backlog
    """What webhooks are yet to be told."""


def take(session: Session, within_s: float) -> Census:
    """The census now; workers are those seen in the last `within_s` seconds."""
    return Census(_groups(session), workers.alive(session, within_s), tally.totals(session), deliveries.backlog(session))


def _groups(session: Session) -> list[Group]:
    # All of these columns are in the index `run_by_turn`: no row is read.
    columns = RunRecord.queue, RunRecord.status, func.count(), func.min(RunRecord.queued_at)
    rows = session.execute(select(*columns).group_by(RunRecord.status, RunRecord.queue)).all()
    moment = session.scalars(select(now())).one()
    return [Group(queue, status, runs, max(0.0, (moment - first).total_seconds())) for queue, status, runs, first in rows]
