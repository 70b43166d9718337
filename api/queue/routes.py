"""`/v1/queue` and `/v1/workers`: what waits, what runs, where."""

from api.http.authentication import Reader
from api.http.dependencies import Configuration, Store
from api.http.routing import Router
from api.queue.responses import queue_answers
from fedcore.platform.store import runs, workers
from fedcore.platform.store.tables import WorkerRecord
from fedq.schemas import Queues, Worker, Workers

router = Router(prefix="/v1", tags=["operations"])


@router.get("/queue", summary="Read the queues")
def read_queue(_principal: Reader, database: Store, settings: Configuration) -> Queues:
    """Return the number of unfinished runs of all owners, by queue."""
    with database.reading() as session:
        return Queues(items=queue_answers(session, settings.seen_seconds))


@router.get("/workers", summary="List workers")
def read_workers(principal: Reader, database: Store, settings: Configuration) -> Workers:
    """Return workers with a recent heartbeat. A run is visible to its owner and to
    administrators.
    """
    with database.reading() as session:
        alive = workers.alive(session, settings.seen_seconds)
        shown = runs.visible(session, [record.run_id for record in alive if record.run_id], principal.sees)
    return Workers(items=[_worker(record, shown) for record in alive])


def _worker(record: WorkerRecord, shown: set[str]) -> Worker:
    worker = Worker.model_validate(record)
    return worker if record.run_id in shown else worker.model_copy(update={"run_id": None})
