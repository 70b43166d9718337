"""The lines before the queues; on both databases."""

import random
from datetime import timedelta
from typing import Any

from fedcore.platform.store import Database, queue_view, runs, workers
from fedcore.platform.store.queue_view import QueuePosition
from tests.builders.claims import QUEUE, claim, claimant, commit
from tests.builders.experiments import submit
from tests.builders.transactions import read, write

SEEN_S = 30.0


def _lines(database: Database) -> list[QueuePosition]:
    return read(database, queue_view.queue_positions, SEEN_S)


def _worker(
    database: Database, name: str = "worker-1", queue: str = QUEUE, memory_bytes: int | None = None
) -> None:
    about: dict[str, Any] = {
        "host": "here",
        "pid": 7,
        "queues": [queue],
        "device": "cpu",
        "run_id": None,
        "memory_bytes": memory_bytes,
    }
    write(database, workers.seen, name, **about)


def test_the_order_is_that_in_which_workers_take(database: Database) -> None:
    _worker(database)
    draw = random.Random(1)
    names = {}
    for number in range(12):
        owner, priority = draw.choice(["ada", "bob", "eve"]), draw.choice([4, 5, 5, 5])
        seeds = list(range(draw.choice([1, 2, 5])))
        made = submit(database, owner=owner, name=f"{number}", seeds=seeds, execution={"priority": priority})
        names[made.id] = made.name
    commit(database, claim(database, "before"))
    told = [item.entry.name for item in _lines(database)]
    assert [item.position for item in _lines(database)] == list(range(1, len(told) + 1))
    taken: dict[str, None] = {}
    number = 0
    while (
        held := write(database, runs.claim, claimant(f"worker {(number := number + 1)}"), 60.0)
    ) is not None:
        taken.setdefault(names[held.experiment_id])
    assert told == list(taken)


def test_an_entry_is_what_waits_of_an_experiment(database: Database) -> None:
    _worker(database)
    made = submit(database, owner="ada", seeds=[0, 1, 2])
    held = claim(database)
    (item,) = _lines(database)
    entry = item.entry
    assert (entry.queue, entry.owner, entry.experiment_id, entry.name, entry.priority) == (
        QUEUE,
        "ada",
        made.id,
        "one run",
        5,
    )
    assert (entry.runs, entry.ready, entry.rounds_left, item.position, item.reason) == (2, 2, 8, 1, None)
    assert abs(entry.queued_at - made.created_at) < timedelta(minutes=1)
    commit(database, held, 3)
    ((run, name),) = read(database, queue_view.running_runs, 10)
    assert (run.id, run.worker, name, run.done) == (held.run_id, "worker-1", "one run", 3)


def test_runs_that_cannot_be_taken_stand_behind_with_the_reason(database: Database) -> None:
    submit(database, name="elsewhere", execution={"queue": "gpu"})
    assert [(item.position, item.reason) for item in _lines(database)] == [
        (None, "no worker currently serves the queue 'gpu'")
    ]
    _worker(database)
    submit(database, name="broken", execution={"priority": 9})
    submit(database, name="next")
    write(database, runs.fail, claim(database), "it broke", 3, 60.0)
    first, second, third = _lines(database)
    assert (first.entry.name, first.position, first.reason) == ("next", 1, None)
    assert (second.entry.name, second.position) == ("broken", None)
    assert second.reason is not None
    assert second.reason.startswith("something went wrong; tried again at ")
    assert third.entry.name == "elsewhere"
    assert read(database, queue_view.running_runs, 10) == []
