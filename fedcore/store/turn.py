"""Whose turn it is: the order in which waiting runs are taken."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Select, Subquery, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute

from fedcore.status import Status
from fedcore.store import backoff
from fedcore.store.tables import RunRecord


def best(queues: Sequence[str]) -> Select[str]:
    """The id of the run to take from `queues`, locked; runs that others are just taking are passed over."""
    owners, experiments = _running(RunRecord.owner), _running(RunRecord.experiment_id)
    return (
        select(RunRecord.id)
        .outerjoin(owners, owners.c.key == RunRecord.owner)
        .outerjoin(experiments, experiments.c.key == RunRecord.experiment_id)
        .where(*_waits(queues))
        .order_by(
            RunRecord.priority.desc(),
            func.coalesce(owners.c.count, 0),
            func.coalesce(experiments.c.count, 0),
            RunRecord.queued_at,
            RunRecord.id,
        )
        .limit(1)
        .with_for_update(of=RunRecord, skip_locked=True)
    )


def comes_first(queues: Sequence[str], priority: int, *, turn_over: bool) -> Select[bool]:
    """Whether a run waits in `queues` that comes before a running one of this priority; at the end of its turn an equal one does."""
    least = priority if turn_over else priority + 1
    return select(exists().where(*_waits(queues), RunRecord.priority >= least))


def _waits(queues: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    return RunRecord.status == Status.QUEUED, RunRecord.queue.in_(queues), backoff.over()


def _running(key: InstrumentedAttribute[str]) -> Subquery:
    """How many runs are running, by `key`."""
    return select(key.label("key"), func.count().label("count")).where(RunRecord.status == Status.RUNNING).group_by(key).subquery()
