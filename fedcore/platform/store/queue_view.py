"""View of the queues: experiments with queued runs, in the order in which workers would take from
them, and running runs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from fedcore.platform.status import Status
from fedcore.platform.store import backoff, fair_share, scheduler, wait_reasons, workers
from fedcore.platform.store.fair_share import FairShareState, OwnerQueue, RunCandidate
from fedcore.platform.store.tables import ExperimentRecord, RunRecord, WorkerRecord

MAX_SIMULATED_PICKS = 200
"""Scheduling steps simulated per queue; experiments not reached are listed last."""


class QueuedExperiment(NamedTuple):
    """The queued runs of an experiment."""

    queue: str
    owner: str
    key_id: str
    priority: int
    experiment_id: str
    name: str
    runs: int
    ready: int
    """Runs without a pause before their next attempt."""
    rounds_left: int
    queued_at: datetime
    """When the first of them was queued."""
    next_try_at: datetime | None
    memory_bytes: int
    """The least that one of its runs needs."""
    any_worker: int
    """Runs that need no packages."""


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Position of an experiment in its queue."""

    entry: QueuedExperiment
    position: int | None
    """Position in the queue from 1; None where none of its runs can be taken now."""
    reason: str | None = None
    """Reason for not having a position."""


class RunningRun(NamedTuple):
    """A run that a worker executes."""

    run: RunRecord
    name: str
    """Name of the experiment."""


def queue_positions(session: Session, seen_s: float) -> list[QueuePosition]:
    """List the experiments with queued runs, by queue and position.

    Workers count if they were seen in the last `seen_s` seconds.
    """
    entries = _entries(session)
    present, needed = workers.alive(session, seen_s), _needed_packages(session)
    full = wait_reasons.quota_exhausted(session, {entry.key_id for entry in entries if entry.key_id})
    blocked = [
        QueuePosition(entry, None, _reason(entry, needed[entry.experiment_id], present, full))
        for entry in entries
    ]
    free = [item.entry for item in blocked if item.reason is None]
    positions = {
        entry: index
        for queue in {entry.queue for entry in free}
        for index, entry in enumerate(_order(session, queue, free), 1)
    }
    placed = [replace(item, position=positions.get(item.entry)) for item in blocked]
    return sorted(
        placed,
        key=lambda item: (item.entry.queue, item.position is None, item.position or 0, item.entry.queued_at),
    )


def running_runs(session: Session, limit: int) -> list[RunningRun]:
    """Running runs, by worker, at most `limit`."""
    held = (
        select(RunRecord, ExperimentRecord.name)
        .join(ExperimentRecord, ExperimentRecord.id == RunRecord.experiment_id)
        .where(RunRecord.status == Status.RUNNING)
        .order_by(RunRecord.worker, RunRecord.id)
        .limit(limit)
    )
    return [RunningRun(run, name) for run, name in session.execute(held)]


def _entries(session: Session) -> list[QueuedExperiment]:
    run = RunRecord
    place = run.queue, run.owner, run.key_id, run.priority, run.experiment_id
    ready = func.sum(case((backoff.over(), 1), else_=0))
    sums = (
        func.count(),
        ready,
        func.sum(run.rounds - run.done),
        func.min(run.queued_at),
        func.min(run.not_before),
        func.min(run.memory_bytes),
        func.sum(case((run.packages.is_(None), 1), else_=0)),
    )
    grouped = select(*place, *(value.label(f"sum_{index}") for index, value in enumerate(sums)))
    waits = grouped.where(run.status == Status.QUEUED).group_by(*place).subquery()
    first, rest = list(waits.c)[: len(place)], list(waits.c)[len(place) :]
    query = select(*first, ExperimentRecord.name, *rest).join(
        ExperimentRecord, ExperimentRecord.id == waits.c.experiment_id
    )
    return [QueuedExperiment._make(row) for row in session.execute(query)]


def _needed_packages(session: Session) -> dict[str, list[str | None]]:
    """The values of `RunRecord.packages`, other than None, of queued runs, by experiment."""
    columns = RunRecord.experiment_id, RunRecord.packages
    queued = RunRecord.status == Status.QUEUED, RunRecord.packages.is_not(None)
    found: defaultdict[str, list[str | None]] = defaultdict(list)
    for experiment_id, packages in session.execute(select(*columns).where(*queued).distinct()):
        found[experiment_id].append(packages)
    return found


def _reason(
    entry: QueuedExperiment,
    needed: Sequence[str | None],
    present: Sequence[WorkerRecord],
    full: dict[str, str],
) -> str | None:
    """Reason why no worker can take one of its runs now."""
    unsuitable = [
        wait_reasons.no_suitable_worker(entry.queue, entry.memory_bytes, packages, present)
        for packages in [*[None] * bool(entry.any_worker), *needed]
    ]
    texts = [unsuitable[0] if all(unsuitable) else None, full.get(entry.key_id)]
    if not entry.ready and entry.next_try_at is not None:
        texts.append(f"something went wrong; tried again at {entry.next_try_at:%H:%M:%S} UTC")
    return "; ".join(text for text in texts if text) or None


def _order(session: Session, queue: str, entries: Sequence[QueuedExperiment]) -> Iterator[QueuedExperiment]:
    """Order the entries of a queue by when the first run of each would be taken, simulating the
    scheduler.
    """
    left = {entry: entry.ready for entry in entries if entry.queue == queue}
    ranked: dict[QueuedExperiment, None] = {}
    busy = scheduler.running(session)
    under_way = Counter(run.experiment_id for run in busy)
    accounts, clocks = fair_share.read_usage(session, [queue])
    serving = Counter(place for place, _ in {(run.place, run.worker) for run in busy})
    books = FairShareState([queue], accounts, clocks, serving)
    for _ in range(MAX_SIMULATED_PICKS):
        best = _best(left, under_way)
        choice = fair_share.choose_candidate(best, books)
        if choice is None or len(ranked) == len(left):
            break
        taken = best[choice.flow]
        ranked.setdefault(taken)
        left[taken] -= 1
        under_way[taken.experiment_id] += 1
        serving[choice.flow.place] += 1
        accounts[choice.flow.place] = replace(
            accounts.get(choice.flow.place, fair_share.OwnerUsage()), lift=choice.lift
        )
        clocks[queue] = max(choice.clock, clocks.get(queue, 0.0))
    later = sorted(
        (entry for entry in left if entry not in ranked), key=lambda entry: (-entry.priority, entry.queued_at)
    )
    return iter([*ranked, *later])


def _best(left: dict[QueuedExperiment, int], under_way: Counter[str]) -> dict[RunCandidate, QueuedExperiment]:
    """The first entry of each owner and key, by its candidate."""
    best: dict[tuple[str, str], QueuedExperiment] = {}
    for entry in (entry for entry, runs in left.items() if runs > 0):
        flow = entry.owner, entry.key_id
        best[flow] = min(
            entry,
            best.get(flow, entry),
            key=lambda one: (-one.priority, under_way[one.experiment_id], one.queued_at),
        )
    return {
        RunCandidate(
            OwnerQueue(entry.queue, entry.owner),
            entry.key_id,
            entry.priority,
            entry.queued_at,
            entry.experiment_id,
        ): entry
        for entry in best.values()
    }
