"""Figures about the whole service, in few and cheap queries, and the recent rates of its runs."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fedcore.platform.status import ENDED, Status
from fedcore.platform.store import counters, webhook_deliveries, workers
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import ExperimentRecord, RunRecord, WorkerRecord
from fedcore.platform.store.webhook_deliveries import Backlog


class RunGroup(NamedTuple):
    """The runs of one queue and status."""

    queue: str
    status: Status
    runs: int
    longest_s: float
    """Time since the first of them was queued."""


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """State of the service at one moment."""

    groups: Sequence[RunGroup]
    workers: Sequence[WorkerRecord]
    totals: dict[str, float]
    """Sums by the names of `counters`."""
    backlog: Backlog
    """Webhook deliveries that are not sent."""


MOST_COUNTED = 10_000
"""Ended runs that are counted each time; it takes 2 ms."""
RECOUNT_S = 60.0


class EndedRuns:
    """Numbers of runs that have ended, by queue and status. Changes in place.

    To count them reads an index from end to end, so more than `most` are counted once a minute.
    """

    def __init__(self, most: int = MOST_COUNTED, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._groups: Sequence[RunGroup] = ()
        self._counted_at = clock()

    def read(self, session: Session) -> Sequence[RunGroup]:
        """Return the numbers, at most a minute old."""
        now = self._clock()
        many = sum(group.runs for group in self._groups) > self._most
        if not many or now >= self._counted_at + RECOUNT_S:
            self._groups, self._counted_at = _groups(session, ENDED), now
        return self._groups


def snapshot(session: Session, within_s: float, ended: EndedRuns) -> ServiceSnapshot:
    """Read the state of the service; workers count if they were seen in the last `within_s`
    seconds.
    """
    return ServiceSnapshot(
        [*_groups(session, set(Status) - ENDED), *ended.read(session)],
        workers.alive(session, within_s),
        counters.totals(session),
        webhook_deliveries.backlog(session),
    )


def _groups(session: Session, statuses: Collection[Status]) -> list[RunGroup]:
    # All of these columns are in the index `run_by_turn`: no row is read.
    columns = RunRecord.queue, RunRecord.status, func.count(), func.min(RunRecord.queued_at)
    query = select(*columns).where(RunRecord.status.in_(sorted(statuses)))
    rows = session.execute(query.group_by(RunRecord.status, RunRecord.queue)).all()
    moment = session.scalars(select(sql_now())).one()
    return [
        RunGroup(queue, status, runs, max(0.0, (moment - first).total_seconds()))
        for queue, status, runs, first in rows
    ]


LATEST = 100
"""Latest experiments considered."""
MOST_RUNS = 25


def recent_rates(session: Session, kind: str, owner: str | None) -> list[float]:
    """Return the work per second of the latest runs of this `work_kind`, of `owner` or of all."""
    latest = select(ExperimentRecord.id).order_by(ExperimentRecord.id.desc()).limit(LATEST)
    if owner is not None:
        latest = latest.where(ExperimentRecord.owner == owner)
    run = RunRecord
    known = run.work_kind == kind, run.work > 0, run.seconds > 0
    rates = (
        select(run.work * run.done / run.seconds)
        .where(run.experiment_id.in_(latest), *known)
        .order_by(run.id.desc())
        .limit(MOST_RUNS)
    )
    return list(session.scalars(rates))
