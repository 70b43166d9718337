"""`/queue`: queued experiments in scheduling order with reasons, and workers with their runs."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from api.http.authentication import Reader
from api.http.dependencies import DatabaseDep, SettingsDep
from api.queue.routes import MOST, queue_answers
from api.web.rendering import render_page
from fedcore.platform.store import groups, queue_view, sharing, workers
from fedcore.platform.store.queue_view import QueuePosition, RunningRun
from fedcore.platform.store.tables import WorkerRecord
from fedq.schemas import QueueDepth

router = APIRouter(include_in_schema=False)


class WorkerRow(NamedTuple):
    """Worker with its runs that the caller may see."""

    record: WorkerRecord
    runs: Sequence[RunningRun]
    hidden: int
    """Number of runs of other owners."""


class QueueLine(NamedTuple):
    """A queue."""

    name: str
    depth: QueueDepth | None
    """None: empty."""
    workers: int
    rows: Sequence[QueuePosition]
    more: int
    """Number of queued experiments that are not listed."""


class Visibility(NamedTuple):
    """Experiments whose names a user may see."""

    owner: str | None
    """None: an administrator, who sees all."""
    shared: Collection[str]
    """Ids of experiments that others share with the user."""

    def covers(self, owner: str, experiment_id: str) -> bool:
        """Return whether an experiment of `owner` is shown."""
        return self.owner in (None, owner) or experiment_id in self.shared


@router.get("/queue")
def read(request: Request, principal: Reader, database: DatabaseDep, settings: SettingsDep) -> Response:
    """Return the page, which refreshes itself every few seconds.

    Experiments and runs are named to their owner, to users with whom they are shared, and to administrators.
    """
    with database.reading() as session:
        depths = queue_answers(session, settings.seen_seconds)
        waiting = queue_view.queue_positions(session, settings.seen_seconds)
        alive = workers.alive(session, settings.seen_seconds)
        busy = queue_view.running_runs(session, MOST)
        owner = principal.sees
        shared = [] if owner is None else session.scalars(sharing.shared_with(owner)).all()
        together = groups.list_groups(session, MOST)
    visible = Visibility(owner, set(shared))
    names = sorted({queue.queue for queue in depths} | {queue for worker in alive for queue in worker.queues})
    shown = [
        _line(name, depths, [item for item in waiting if item.entry.queue == name], alive) for name in names
    ]
    return render_page(
        request,
        "queue.html",
        lines=shown,
        benches=_benches(alive, busy, visible),
        groups=together,
        visible=visible,
        helping={worker for group in together for worker in group.members},
    )


def _line(
    name: str,
    depths: Iterable[QueueDepth],
    waiting: Sequence[QueuePosition],
    alive: Iterable[WorkerRecord],
) -> QueueLine:
    depth = next((depth for depth in depths if depth.queue == name), None)
    serving = sum(name in worker.queues for worker in alive)
    return QueueLine(name, depth, serving, waiting[:MOST], max(0, len(waiting) - MOST))


def _benches(
    alive: Iterable[WorkerRecord], busy: Iterable[RunningRun], visibility: Visibility
) -> list[WorkerRow]:
    held: defaultdict[str | None, list[RunningRun]] = defaultdict(list)
    for one in busy:
        held[one.run.worker].append(one)
    seen = {
        worker.id: [one for one in held[worker.id] if visibility.covers(one.run.owner, one.run.experiment_id)]
        for worker in alive
    }
    return [
        WorkerRow(worker, seen[worker.id], len(held[worker.id]) - len(seen[worker.id])) for worker in alive
    ]
