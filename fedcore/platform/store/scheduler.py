"""Picks the next run. Cost grows slowly with the number of owners who wait, and not with runs.

The index `run_by_turn` holds the runs of a status and queue by priority, owner, key, experiment and
age, so the best of each owner and key of the highest priority is found by one step of an index skip
scan, however many runs each has. The database sorts them; only the first are read.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from random import randrange
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Double,
    Integer,
    ScalarSelect,
    Select,
    String,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    text,
    true,
    tuple_,
    union,
)
from sqlalchemy.orm import Session, aliased

from fedcore.platform.status import Status
from fedcore.platform.store import backoff, fair_share, quotas
from fedcore.platform.store.fair_share import (
    FairShareState,
    OwnerQueue,
    OwnerUsage,
    RunCandidate,
    ScheduledRun,
)
from fedcore.platform.store.leases import RUNS, Claimant
from fedcore.platform.store.tables import RunRecord, ShareRecord

CONSIDERED = 100
"""Oldest experiments of one owner that are considered."""


@dataclass(frozen=True, slots=True)
class Running:
    """A run that a worker executes."""

    place: OwnerQueue
    key_id: str
    experiment_id: str
    worker: str | None


class _Level(NamedTuple):
    """The runs of one priority in a queue."""

    queue: str
    priority: int


def next_run(session: Session, claimant: Claimant) -> str | None:
    """Choose a queued run for a worker, of the first of its queues that has one of the highest priority,
    lock it and record the pick.

    Passed over are runs that others are just claiming, and runs that need more memory or other packages
    than the worker has.
    """
    suitable, queues = _suitable(session, claimant), claimant.queues
    levels, busy = _waiting_levels(session, queues, suitable), running(session)
    clocks = fair_share.read_clocks(session, queues)
    under_way = Counter(run.experiment_id for run in busy)
    for level in sorted(levels, key=lambda level: (-level.priority, queues.index(level.queue))):
        for choice in _apart(session, _choices(session, level, suitable, busy, clocks)):
            full = quotas.free_slots(session, choice.flow.key_id) == 0
            run_id = None if full else _locked(session, choice.flow, under_way, suitable)
            if run_id is not None:
                fair_share.record_pick(session, claimant.worker, choice)
                return run_id
    return None


def should_preempt(session: Session, claimant: Claimant, priority: int, *, turn_over: bool) -> bool:
    """True if a queued run comes before one of this `priority` that a worker executes.

    With `turn_over`, a run of the same priority does. Runs that need more memory or other packages than
    the worker has do not count.
    """
    least, suitable = priority if turn_over else priority + 1, _suitable(session, claimant)
    waiting = _waiting_levels(session, claimant.queues, suitable)
    levels = [level for level in waiting if level.priority >= least]
    if not levels:
        return False
    # As it will be once the worker has let go of what it has.
    busy = [run for run in running(session) if run.worker != claimant.worker]
    return any(any(_choices(session, level, suitable, busy, {})) for level in levels)


def usable_packages(
    session: Session, worker_packages: Sequence[str], status: Status = Status.QUEUED
) -> list[str]:
    """Values of `RunRecord.packages` of runs of this status that a worker with these packages may execute."""
    if not worker_packages:
        return []
    needed = select(RunRecord.packages).where(RunRecord.status == status, RunRecord.packages.is_not(None))
    have, found = set(worker_packages), session.scalars(needed.distinct())
    return [packages for packages in found if packages and have.issuperset(json.loads(packages))]


def _suitable(session: Session, claimant: Claimant) -> Mapping[str, Any]:
    """Parameters of statements about runs that a worker may take."""
    usable = usable_packages(session, claimant.packages)
    return {"worker_memory": claimant.memory_bytes, "usable": usable}


def suits(
    run: type[RunRecord],
    worker_memory: int | ColumnElement[int],
    usable: Sequence[str] | ColumnElement[Any],
) -> tuple[ColumnElement[bool], ...]:
    """Conditions of a run that a worker with this memory may execute, given its `usable_packages`."""
    return run.memory_bytes <= worker_memory, or_(run.packages.is_(None), run.packages.in_(usable))


def running(session: Session) -> list[Running]:
    """Runs that workers execute."""
    columns = RunRecord.queue, RunRecord.owner, RunRecord.key_id, RunRecord.experiment_id, RunRecord.worker
    rows = session.execute(select(*columns).where(RunRecord.status == Status.RUNNING))
    return [
        Running(OwnerQueue(queue, owner), key_id, experiment_id, worker)
        for queue, owner, key_id, experiment_id, worker in rows
    ]


FRONT = 16
"""Candidates of a level that are read at first; while none of them can be taken, eight times as many."""


def _choices(
    session: Session,
    level: _Level,
    suitable: Mapping[str, Any],
    busy: Sequence[Running],
    clocks: Mapping[str, float],
) -> Iterator[ScheduledRun]:
    """Candidates of a level that quotas allow, in the order in which they are to be tried: each as if
    those before it did not wait.
    """
    serving = Counter(place for place, _ in {(run.place, run.worker) for run in busy})
    limit, passed = FRONT, set[tuple[str, str]]()
    while True:
        accounts = _front(session, level, suitable, clocks.get(level.queue, 0.0), limit)
        usage = {flow.place: used for flow, used in accounts.items()}
        books = FairShareState([level.queue], usage, clocks, serving)
        waiting = [flow for flow in accounts if (flow.place.owner, flow.key_id) not in passed]
        allowed = _within_quotas(session, waiting, busy)
        left = {(flow.place.owner, flow.key_id) for flow in allowed}
        passed |= {(flow.place.owner, flow.key_id) for flow in waiting} - left
        complete = len(accounts) < limit
        # While fewer than `limit` were passed over, the first of those that are left has been read.
        while (complete or len(passed) < limit) and (choice := fair_share.choose_candidate(allowed, books)):
            yield choice
            allowed.remove(choice.flow)
            passed.add((choice.flow.place.owner, choice.flow.key_id))
        if complete:
            return
        limit *= 8


def _apart(session: Session, choices: Iterator[ScheduledRun]) -> Iterator[ScheduledRun]:
    """The candidates, beginning with the first of the FRONT whose owner no other worker is just serving,
    or, if there is none, with any of them.

    A claim that is not committed is invisible, so all workers that claim at the same moment would take
    runs of the same owner. On SQLite only one claims at a time.
    """
    first = next(choices, None)
    if first is None:
        return
    front = [first]
    if session.get_bind().dialect.name == "postgresql" and _unserved(session, front) is None:
        front += islice(choices, FRONT - 1)
        number = _unserved(session, front[1:])
        chosen = front.pop(randrange(len(front)) if number is None else number)  # noqa: S311 - no secret
        # The first one's owner is still waiting.
        yield replace(chosen, clock=first.clock)
    yield from front
    yield from choices


def _unserved(session: Session, choices: Sequence[ScheduledRun]) -> int | None:
    """The number, from 1, of the first choice whose owner no other worker is just serving. Until the end of
    this transaction, others find that this owner is being served.
    """
    places = ["/".join(choice.flow.place) for choice in choices]
    number: int | None = session.scalar(_LOCK_FIRST, {"places": places})
    return number


_LOCK_FIRST = text(
    """
    SELECT number FROM unnest(CAST(:places AS text[])) WITH ORDINALITY AS candidate (place, number)
    WHERE pg_try_advisory_xact_lock(hashtextextended(place, 0)) LIMIT 1
    """
)


def _within_quotas(
    session: Session, waiting: Sequence[RunCandidate], busy: Sequence[Running]
) -> list[RunCandidate]:
    """Candidates whose keys may have another run running."""
    limits = quotas.running_limits(session, {flow.key_id for flow in waiting if flow.key_id})
    held = Counter(run.key_id for run in busy)
    return [flow for flow in waiting if flow.key_id not in limits or held[flow.key_id] < limits[flow.key_id]]


def _waiting_levels(session: Session, queues: Sequence[str], suitable: Mapping[str, Any]) -> list[_Level]:
    """Levels of `queues` at which runs wait that a worker may take."""
    return [_Level(*row) for row in session.execute(_levels(tuple(queues)), suitable)]


# Built once: to build such a statement takes longer than to carry it out.
@cache
def _levels(queues: tuple[str, ...]) -> Select[Any]:
    start, *starts = [
        select(literal(queue).label("queue"), _highest(RunRecord, queue).label("priority"))
        for queue in dict.fromkeys(queues)
    ]
    level, after = start.cte("level", recursive=True), aliased(RunRecord, name="after")
    lower = _highest(after, level.c.queue, after.priority < level.c.priority)
    following = select(level.c.queue, lower).where(level.c.priority.is_not(None))
    level = level.union_all(*starts, following)
    return select(level.c.queue, level.c.priority).where(level.c.priority.is_not(None))


def _highest(
    run: type[RunRecord], queue: str | ColumnElement[str], *conditions: ColumnElement[bool]
) -> ScalarSelect[int]:
    query = select(run.priority).where(*_waits(run, queue), *conditions)
    return query.order_by(run.priority.desc()).limit(1).correlate_except(run).scalar_subquery()


def _front(
    session: Session, level: _Level, suitable: Mapping[str, Any], clock: float, limit: int
) -> dict[RunCandidate, OwnerUsage]:
    """Candidates of a level, with the use of the queue by their owners: for each owner and key, of the
    oldest experiment, the run that has waited longest.

    The first `limit` in the order of `fair_share.choose_candidate`, the `limit` with the least virtual
    time, and no others.
    """
    query = _first_candidates(session.get_bind().dialect.name == "postgresql")
    named = {**suitable, **level._asdict(), "clock": clock, "limit": limit}
    return {
        RunCandidate(OwnerQueue(level.queue, owner), key_id, level.priority, queued_at, run_id): OwnerUsage(
            seconds or 0.0, lift or 0.0
        )
        for run_id, owner, key_id, queued_at, seconds, lift in session.execute(query, named)
    }


@cache
def _first_candidates(lateral: bool) -> CompoundSelect[Any]:
    flow, queue, limit = _flows(lateral), bindparam("queue", type_=String), bindparam("limit", type_=Integer)
    share, run = ShareRecord, RunRecord
    used = func.sum(share.seconds).label("seconds"), func.max(share.lift).label("lift")
    usage = select(share.owner, *used).where(share.queue == queue).group_by(share.owner).subquery("usage")
    count = func.count(run.worker.distinct()).label("workers")
    served = select(run.owner, count).where(run.status == Status.RUNNING, run.queue == queue)
    serving = served.group_by(run.owner).subquery("serving")
    clock, time = bindparam("clock", type_=Double), usage.c.lift + usage.c.seconds
    workers = func.coalesce(serving.c.workers, 0).label("workers")
    start = case((time > clock, time), else_=clock).label("start")
    found = (
        select(*flow.c, usage.c.seconds, usage.c.lift, workers, start)
        .join(usage, usage.c.owner == flow.c.owner, isouter=True)
        .join(serving, serving.c.owner == flow.c.owner, isouter=True)
        .cte("found")
    )
    *columns, found_workers, found_start = found.c
    later = found_start, found.c.queued_at, found.c.id
    orders = {"first": (found_workers, *later), "least": later}
    parts = [select(*columns).order_by(*order).limit(limit).subquery(name) for name, order in orders.items()]
    return union(*(select(*part.c) for part in parts))


def _flows(lateral: bool) -> CTE:
    """The best run of each owner and key of a level."""
    names = "id", "owner", "key_id", "queued_at"
    after = aliased(RunRecord, name="after")
    scan = _skip_scan(names, _level_ids(RunRecord).scalar_subquery())
    if lateral:
        later = tuple_(after.owner, after.key_id) > tuple_(scan.c.owner, scan.c.key_id)
        first = _level_ids(after).with_only_columns(*(getattr(after, name) for name in names))
        following = first.where(later).lateral("following")
        return scan.union_all(select(*following.c).select_from(scan).join(following, true()))
    # SQLite has no lateral joins, and of pairs it would look at the owner alone in the index, and then
    # at all that he has.
    ids = _level_ids(after).correlate_except(after)
    key = ids.where(after.owner == scan.c.owner, after.key_id > scan.c.key_id).scalar_subquery()
    owner = ids.where(after.owner > scan.c.owner).scalar_subquery()
    return _continued(scan, names, func.coalesce(key, owner))


def _level_ids(run: type[RunRecord]) -> Select[Any]:
    """The id of the first run of a level."""
    queue, priority = bindparam("queue", type_=String), bindparam("priority", type_=Integer)
    order = run.owner, run.key_id, run.experiment_id, run.queued_at, run.id
    return select(run.id).where(*_waits(run, queue), run.priority == priority).order_by(*order).limit(1)


def _skip_scan(names: Sequence[str], first: ScalarSelect[str]) -> CTE:
    """Columns of runs that are found one by one, the first by this id."""
    run = aliased(RunRecord, name="start")
    columns = [getattr(run, name) for name in names]
    return select(*columns).where(run.id == first).cte("scan", recursive=True)


def _continued(scan: CTE, names: Sequence[str], following: ColumnElement[str]) -> CTE:
    """A scan in which this id follows each run; it ends where that is None."""
    run = aliased(RunRecord, name="following")
    columns = [getattr(run, name) for name in names]
    return scan.union_all(select(*columns).select_from(scan).join(run, run.id == following))


@cache
def _by_experiment() -> Select[Any]:
    """The run queued longest of each experiment of a candidate: its id, experiment and age."""
    names = "id", "experiment_id", "queued_at"
    after = aliased(RunRecord, name="after")
    scan = _skip_scan(names, _first(RunRecord, *_alike(RunRecord)))
    following = _first(after, *_alike(after), after.experiment_id > scan.c.experiment_id)
    return select(*_continued(scan, names, following).c).limit(CONSIDERED)


@cache
def _next() -> Select[Any]:
    """Id of the run queued longest of an experiment of a candidate, locked."""
    among = *_alike(RunRecord), RunRecord.experiment_id == bindparam("experiment_id")
    query = select(RunRecord.id).where(*among).order_by(RunRecord.queued_at, RunRecord.id).limit(1)
    return RUNS.lock_free(query)


def _locked(
    session: Session, flow: RunCandidate, under_way: Counter[str], suitable: Mapping[str, Any]
) -> str | None:
    """Lock the run of a candidate to take: of the experiment with the fewest running, the one
    queued longest.
    """
    named = {**suitable, **flow.place._asdict(), "key_id": flow.key_id, "priority": flow.priority}
    oldest = session.execute(_by_experiment(), named).all()
    for run in sorted(oldest, key=lambda run: (under_way[run.experiment_id], run.queued_at, run.id)):
        run_id: str | None = session.scalar(_next(), {**named, "experiment_id": run.experiment_id})
        if run_id is not None:
            return run_id
    return None


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
