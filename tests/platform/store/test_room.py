"""A run that needs more memory than a worker has is never sent to it.

And nobody gives way to it there.
"""

from typing import Any

import pytest

from fedcore.platform.store import Database, experiments, runs, workers
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.progress import oversized
from tests.builders.claims import LEASE_S, QUEUE, WORKER, commit_slice
from tests.builders.experiments import runs_of, submit
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import read, write

GIB = 1 << 30


def queued(database: Database, *needed: int, **changes: object) -> str:
    """An experiment with an arm of each of these needs; its id."""
    sweep = {"local.lr": [0.1 * (number + 1) for number in range(len(needed))]}
    spec = specification(ONE_RUN, sweep=sweep, **changes)
    return write(database, experiments.create, NewExperiment(spec, memory_bytes=needed)).record.id


def taken(database: Database, room: int) -> Claim | None:
    """Run that a worker with so much memory takes."""
    return write(database, runs.claim, WORKER, [QUEUE], LEASE_S, room)


def test_a_worker_takes_what_it_has_room_for_and_leaves_the_rest_to_larger_ones(database: Database) -> None:
    queued(database, 8 * GIB, 2 * GIB, execution={"priority": 9})
    queued(database, 1 * GIB)
    found = [taken(database, 4 * GIB) for _ in range(3)]
    assert [held and held.memory_bytes for held in found] == [2 * GIB, 1 * GIB, None]
    held = taken(database, 8 * GIB)
    assert held is not None
    assert held.memory_bytes == 8 * GIB


def test_a_run_of_unknown_need_goes_anywhere(database: Database) -> None:
    submit(database)
    assert taken(database, 1) is not None


@pytest.mark.parametrize(("room", "control"), [(4 * GIB, "continue"), (8 * GIB, "yield")])
def test_a_run_gives_way_only_to_what_its_worker_has_room_for(
    database: Database, room: int, control: str
) -> None:
    queued(database, 1 * GIB)
    held = taken(database, room)
    assert held is not None
    queued(database, 6 * GIB, execution={"priority": 9})
    assert commit_slice(database, held) == control


@pytest.mark.parametrize(("room", "beside"), [(1, 0), (3, 0), (4, 1), (6, 2), (100, 3)])
def test_a_gang_is_no_larger_than_there_is_room_for(database: Database, room: int, beside: int) -> None:
    queued(database, 2 * GIB, 2 * GIB, 2 * GIB, 1 * GIB)
    held = taken(database, max(room, 2) * GIB)
    assert held is not None
    mates = write(database, runs.claim_batch, held, [0, 1, 2, 3], 7, lease_s=LEASE_S, seen_s=LEASE_S)
    assert len(mates) == beside
    assert held.memory_bytes + sum(mate.memory_bytes for mate in mates) <= held.worker_memory


def test_waiting_runs_that_are_too_large_are_counted_by_queue(database: Database) -> None:
    queued(database, 8 * GIB, 2 * GIB, 9 * GIB)
    assert read(database, oversized, {QUEUE: 4 * GIB, "other": 0}) == {QUEUE: 2, "other": 0}


def test_a_worker_says_what_it_has_room_for(database: Database) -> None:
    about: dict[str, Any] = {"host": "here", "pid": 1, "queues": [QUEUE], "device": "cpu", "run_id": None}
    write(database, workers.seen, WORKER, **about, memory_bytes=4 * GIB)
    assert [worker.memory_bytes for worker in read(database, workers.alive, 60.0)] == [4 * GIB]


def test_needs_are_kept_by_arm(database: Database) -> None:
    made = read(database, experiments.find, queued(database, 3 * GIB, 5 * GIB, seeds=[0, 1]))
    assert [run.memory_bytes // GIB for run in runs_of(database, made)] == [3, 3, 5, 5]
