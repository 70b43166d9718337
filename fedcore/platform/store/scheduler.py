"""Picks the next run. Cost grows with the number of owners, not runs.

The index `run_by_turn` holds the runs of a status and queue by owner, key, priority, experiment and
age, so the best of each owner and key is found by an index skip scan, however many runs each has.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    ScalarSelect,
    Select,
    String,
    bindparam,
    func,
    or_,
    select,
)
from sqlalchemy.orm import Session, aliased

from fedcore.platform.status import Status
from fedcore.platform.store import backoff, fair_share, quotas
from fedcore.platform.store.fair_share import FairShareState, OwnerQueue, RunCandidate
from fedcore.platform.store.leases import ANY_MEMORY, RUNS
from fedcore.platform.store.tables import RunRecord

CONSIDERED = 100
"""Oldest experiments of one owner that are considered."""


@dataclass(frozen=True, slots=True)
class Running:
    """A run that a worker executes."""

    place: OwnerQueue
    key_id: str
    experiment_id: str
    worker: str | None


class _Waiting(NamedTuple):
    id: str
    queue: str
    owner: str
    key_id: str
    priority: int
    experiment_id: str
    queued_at: datetime


def next_run(
    session: Session, worker: str, queues: Sequence[str], worker_memory: int, worker_packages: Sequence[str]
) -> str | None:
    """Choose a queued run of `queues`, lock it and record the pick.

    Runs that others are just claiming, and those that need more memory than `worker_memory` or other
    packages than `worker_packages`, are passed over.
    """
    usable = usable_packages(session, worker_packages)
    waiting, busy = candidates(session, queues, worker_memory, usable), running(session)
    accounts, clocks, turns = fair_share.read_usage(session, worker, queues)
    serving = Counter(place for place, _ in {(run.place, run.worker) for run in busy})
    books = FairShareState(accounts, clocks, serving, turns)
    waiting = _within_quotas(session, waiting, busy)
    while (choice := fair_share.choose_candidate(waiting, books)) is not None:
        full = quotas.free_slots(session, choice.flow.key_id) == 0
        under_way = Counter(run.experiment_id for run in busy)
        run_id = None if full else _locked(session, choice.flow, under_way, worker_memory, usable)
        if run_id is not None:
            fair_share.record_pick(session, worker, choice)
            return run_id
        waiting.remove(choice.flow)
    return None


def should_preempt(
    session: Session,
    worker: str,
    queues: Sequence[str],
    priority: int,
    worker_memory: int,
    worker_packages: Sequence[str],
    *,
    turn_over: bool,
) -> bool:
    """True if a queued run comes before one of this `priority` that `worker` executes.

    With `turn_over`, a run of the same priority does. Runs that need more memory than
    `worker_memory`, or other packages than `worker_packages`, do not count.
    """
    least = priority if turn_over else priority + 1
    found = candidates(session, queues, worker_memory, usable_packages(session, worker_packages))
    waiting = [flow for flow in found if flow.priority >= least]
    # As it will be once the worker has let go of what it has.
    return bool(
        waiting
        and _within_quotas(session, waiting, [run for run in running(session) if run.worker != worker])
    )


def usable_packages(
    session: Session, worker_packages: Sequence[str], status: Status = Status.QUEUED
) -> list[str]:
    """Values of `RunRecord.packages` of runs of this status that a worker with these packages may execute."""
    if not worker_packages:
        return []
    have, found = set(worker_packages), session.scalars(_needed(status))
    return [needed for needed in found if needed and have.issuperset(json.loads(needed))]


def suits(
    run: type[RunRecord],
    worker_memory: int | ColumnElement[int],
    usable: Sequence[str] | ColumnElement[Any],
) -> tuple[ColumnElement[bool], ...]:
    """Conditions of a run that a worker with this memory may execute, given its `usable_packages`."""
    return run.memory_bytes <= worker_memory, or_(run.packages.is_(None), run.packages.in_(usable))


def candidates(
    session: Session, queues: Sequence[str], worker_memory: int = ANY_MEMORY, usable: Sequence[str] = ()
) -> list[RunCandidate]:
    """Candidates of `queues`: for each owner and key, of the highest priority and the oldest
    experiment, the run that has waited longest.

    Runs with packages other than those in `usable` are left out.
    """
    found = _waiting(session, _best(tuple(queues)), {"worker_memory": worker_memory, "usable": usable})
    return [
        RunCandidate(OwnerQueue(run.queue, run.owner), run.key_id, run.priority, run.queued_at, run.id)
        for run in found
    ]


def running(session: Session) -> list[Running]:
    """All runs that workers execute."""
    columns = RunRecord.queue, RunRecord.owner, RunRecord.key_id, RunRecord.experiment_id, RunRecord.worker
    rows = session.execute(select(*columns).where(RunRecord.status == Status.RUNNING))
    return [
        Running(OwnerQueue(queue, owner), key_id, experiment_id, worker)
        for queue, owner, key_id, experiment_id, worker in rows
    ]


def _within_quotas(
    session: Session, waiting: Sequence[RunCandidate], busy: Sequence[Running]
) -> list[RunCandidate]:
    """Candidates whose keys may have another run running."""
    limits = quotas.running_limits(session, {flow.key_id for flow in waiting if flow.key_id})
    held = Counter(run.key_id for run in busy)
    return [flow for flow in waiting if flow.key_id not in limits or held[flow.key_id] < limits[flow.key_id]]


# Built once: to build such a statement takes longer than to carry it out.
@cache
def _best(queues: tuple[str, ...]) -> Select[Any]:
    """Ids of the best runs of each queue, owner and key; None where a queue ends."""
    # First leap to one run of each, of its highest priority.
    start, *starts = [select(_last(RunRecord, *_waits(RunRecord, queue)).label("id")) for queue in queues]
    leap, after = start.cte("leap", recursive=True), aliased(RunRecord, name="after")
    waits = _waits(after, _of(leap, "queue"))
    # Not as pairs, (owner, key_id) < (..., ...): SQLite would look at the owner alone in the index,
    # and then at all that he has.
    key = _last(after, *waits, after.owner == _of(leap, "owner"), after.key_id < _of(leap, "key_id"))
    owner = _last(after, *waits, after.owner < _of(leap, "owner"))
    leap = leap.union_all(*starts, select(func.coalesce(key, owner)).where(leap.c.id.is_not(None)))
    best = aliased(RunRecord, name="best")
    same = (
        *_waits(best, _of(leap, "queue")),
        *(getattr(best, name) == _of(leap, name) for name in ("owner", "key_id", "priority")),
    )
    return select(_first(best, *same)).select_from(leap)


@cache
def _needed(status: Status) -> Select[Any]:
    """Different values of `RunRecord.packages` of runs of this status; None at the end."""
    least = select(_first_needed(RunRecord, RunRecord.status == status).label("packages"))
    first = least.cte("needed", recursive=True)
    after = aliased(RunRecord, name="after")
    following = _first_needed(after, after.status == status, after.packages > first.c.packages)
    needed = first.union_all(select(following).where(first.c.packages.is_not(None)))
    return select(needed.c.packages)


def _first_needed(run: type[RunRecord], *conditions: ColumnElement[bool]) -> ScalarSelect[str | None]:
    query = select(run.packages).where(*conditions, run.packages.is_not(None))
    query = query.order_by(run.packages).limit(1)
    return query.correlate_except(run).scalar_subquery()


@cache
def _by_experiment() -> Select[Any]:
    """Ids of the runs queued longest of each experiment of a candidate; None at the end."""
    leap = select(_first(RunRecord, *_alike(RunRecord)).label("id")).cte("leap", recursive=True)
    after = aliased(RunRecord, name="after")
    following = _first(after, *_alike(after), after.experiment_id > _of(leap, "experiment_id"))
    leap = leap.union_all(select(following).where(leap.c.id.is_not(None)))
    return select(leap.c.id).limit(CONSIDERED)


@cache
def _next() -> Select[Any]:
    """Id of the run queued longest of an experiment of a candidate, locked."""
    among = *_alike(RunRecord), RunRecord.experiment_id == bindparam("experiment_id")
    query = select(RunRecord.id).where(*among).order_by(RunRecord.queued_at, RunRecord.id).limit(1)
    return RUNS.lock_free(query)


def _locked(
    session: Session,
    flow: RunCandidate,
    under_way: Counter[str],
    worker_memory: int,
    usable: Sequence[str],
) -> str | None:
    """Lock the run of a candidate to take: of the experiment with the fewest running, the one
    queued longest.
    """
    named = {
        **flow.place._asdict(),
        "key_id": flow.key_id,
        "priority": flow.priority,
        "worker_memory": worker_memory,
        "usable": usable,
    }
    oldest = _waiting(session, _by_experiment(), named)
    for run in sorted(oldest, key=lambda run: (under_way[run.experiment_id], run.queued_at, run.id)):
        run_id: str | None = session.scalar(_next(), {**named, "experiment_id": run.experiment_id})
        if run_id is not None:
            return run_id
    return None


def _waiting(
    session: Session, ids: Select[Any], named: Mapping[str, Any] = MappingProxyType({})
) -> Sequence[_Waiting]:
    """The runs with these ids, where they are not None."""
    # Two statements: a planner that cannot know how few ids there are would read the whole table
    # for a join.
    found = [run_id for run_id in session.scalars(ids, named) if run_id]
    return [_Waiting(*row) for row in session.execute(_those(), {"ids": found})]


@cache
def _those() -> Select[Any]:
    columns = (getattr(RunRecord, name) for name in _Waiting._fields)
    return select(*columns).where(RunRecord.id.in_(bindparam("ids", expanding=True)))


def _of(leap: CTE, name: str) -> ScalarSelect[Any]:
    """A column of the run where a leap ends; not by a join, for the same reason as in
    `_waiting`.
    """
    run = aliased(RunRecord)
    return select(getattr(run, name)).where(run.id == leap.c.id).correlate(leap).scalar_subquery()


def _last(run: type[RunRecord], *conditions: ColumnElement[bool]) -> ScalarSelect[str]:
    order = run.owner.desc(), run.key_id.desc(), run.priority.desc()
    return select(run.id).where(*conditions).order_by(*order).limit(1).correlate_except(run).scalar_subquery()


def _first(run: type[RunRecord], *conditions: ColumnElement[bool]) -> ScalarSelect[str]:
    order = run.experiment_id, run.queued_at, run.id
    return select(run.id).where(*conditions).order_by(*order).limit(1).correlate_except(run).scalar_subquery()


def _alike(run: type[RunRecord]) -> tuple[ColumnElement[bool], ...]:
    """Conditions that the best runs of a candidate share."""
    flow = (getattr(run, name) == bindparam(name) for name in ("owner", "key_id", "priority"))
    return *_waits(run, bindparam("queue", type_=String)), *flow


def _waits(run: type[RunRecord], queue: str | ColumnElement[str]) -> tuple[ColumnElement[bool], ...]:
    """Conditions of a run that may be taken from `queue`."""
    suitable = suits(run, bindparam("worker_memory", type_=BigInteger), bindparam("usable", expanding=True))
    return run.status == Status.QUEUED, run.queue == queue, backoff.over(run), *suitable
