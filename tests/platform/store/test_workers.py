"""Which workers are there, and what each is doing."""

from typing import Any

from fedcore.platform.store import Database, workers
from fedcore.platform.store.tables import WorkerRecord
from tests.builders.transactions import read, write


def beat(
    database: Database, worker_id: str = "w1", run_id: str | None = None, **changes: Any
) -> WorkerRecord:
    """A worker reports itself; how it is listed then."""
    given: dict[str, Any] = {"host": "here", "pid": 1, "queues": ["default"], "device": "cpu"}
    write(database, workers.seen, worker_id, run_id=run_id, **(given | changes))
    return next(one for one in read(database, workers.alive, 60) if one.id == worker_id)


def listed(database: Database, within_s: float = 60) -> list[str]:
    return [one.id for one in read(database, workers.alive, within_s)]


def test_a_worker_is_listed_as_it_reports_itself(database: Database) -> None:
    worker = beat(database, host="there", pid=7, queues=["gpu", "default"], device="cuda:1", run_id="run_1")
    assert (worker.host, worker.pid, worker.queues, worker.device, worker.run_id) == (
        "there",
        7,
        ["gpu", "default"],
        "cuda:1",
        "run_1",
    )


def test_a_later_report_replaces_the_earlier_and_keeps_the_start(database: Database) -> None:
    first = beat(database, run_id="run_1")
    second = beat(database, run_id=None)
    assert (second.run_id, second.started_at) == (None, first.started_at)
    assert second.seen_at >= first.seen_at
    assert listed(database) == ["w1"]


def test_workers_are_listed_by_id_while_they_report_themselves(database: Database) -> None:
    for worker_id in ("w2", "w1"):
        beat(database, worker_id)
    assert listed(database) == ["w1", "w2"]
    assert listed(database, within_s=-1) == []


def test_a_worker_that_leaves_is_listed_no_more(database: Database) -> None:
    for worker_id in ("w1", "w2"):
        beat(database, worker_id)
    write(database, workers.gone, "w1")
    write(database, workers.gone, "never there")
    assert listed(database) == ["w2"]


def test_workers_that_fell_silent_are_forgotten(database: Database) -> None:
    for worker_id in ("w1", "w2"):
        beat(database, worker_id)
    assert write(database, workers.forget, 60) == 0
    assert write(database, workers.forget, -1) == 2
    assert listed(database) == []
