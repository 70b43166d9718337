"""Claims: each run is one worker's at a time, threads and processes alike."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from subprocess import PIPE

import pytest

from fedcore.platform.store import Database, Status, experiments, runs
from fedcore.platform.store.leases import Claim
from tests.platform.store.acts import (
    LEASE_S,
    QUEUE,
    WORKER,
    claim,
    lose,
    on_postgresql,
    status_of,
    submit,
    the_run,
    the_runs,
    write,
)

CLAIMING = """
import sys
from fedcore.platform.store import open_database, runs

database = open_database(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
while True:
    with database.transaction() as session:
        held = runs.claim(session, sys.argv[2], ["default"], 60.0)
    if held is None:
        break
    print(held.run_id)
"""
"""A process that claims until nothing waits, once its input is closed."""


def take_all(database: Database, worker: str) -> list[Claim]:
    """Claim until nothing waits."""
    taken = []
    while held := write(database, runs.claim, worker, [QUEUE], LEASE_S):
        taken.append(held)
    return taken


def test_a_claim_has_what_the_work_needs(database: Database) -> None:
    experiment = submit(database, seeds=[3], sweep={"local.lr": [0.1, 0.05]})
    held = claim(database)
    assert (held.experiment_id, held.arm, held.arm_name, held.seed) == (experiment.id, 0, "lr=0.1", 3)
    assert (held.worker, held.fence, held.done, held.rounds, held.checkpoint) == (WORKER, 1, 0, 4, None)
    assert held.spec == experiment.spec


def test_a_claim_is_written_to_the_run(database: Database) -> None:
    experiment = submit(database)
    before = datetime.now(UTC)
    claim(database)
    run = the_run(database, experiment)
    assert (run.status, run.worker, run.fence, run.attempts) == (Status.RUNNING, WORKER, 1, 1)
    assert run.lease_until is not None
    assert 50 < (run.lease_until - before).total_seconds() < 70
    assert status_of(database, experiment) is Status.RUNNING


def test_nothing_is_claimed_where_nothing_waits(database: Database) -> None:
    experiment = submit(database)
    write(database, experiments.pause, experiment.id)
    assert take_all(database, WORKER) == []


def test_workers_that_claim_at_once_take_each_run_once(database: Database) -> None:
    experiment = submit(database, seeds=list(range(24)))
    with ThreadPoolExecutor(8) as workers:
        hands = list(workers.map(lambda number: take_all(database, f"worker-{number}"), range(8)))
    taken = sorted(held.run_id for hand in hands for held in hand)
    assert taken == [run.id for run in the_runs(database, experiment)]
    assert {run.fence for run in the_runs(database, experiment)} == {1}


@pytest.mark.slow
def test_processes_that_claim_at_once_take_each_run_once(database: Database, database_url: str) -> None:
    experiment = submit(database, seeds=list(range(60)))
    command = [sys.executable, "-c", CLAIMING, database_url]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen([*command, f"worker-{n}"], stdin=PIPE, stdout=PIPE, text=True)
            )
            for n in range(3)
        ]
        assert [worker.stdout.readline() for worker in workers if worker.stdout] == ["ready\n"] * 3
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
        hands = [worker.stdout.read().split() for worker in workers if worker.stdout]
    assert sorted(run_id for hand in hands for run_id in hand) == [
        run.id for run in the_runs(database, experiment)
    ]


@on_postgresql
def test_a_claim_does_not_wait_for_one_that_is_just_being_made(database: Database) -> None:
    first, second = (submit(database) for _ in range(2))
    with database.transaction() as session:
        held = runs.claim(session, WORKER, [QUEUE], LEASE_S)
        assert claim(database, "worker-2").experiment_id == second.id
    assert held is not None
    assert held.experiment_id == first.id


@pytest.mark.parametrize("given_up", ["hand back", "fail", "lost"])
def test_each_claim_of_a_run_has_a_higher_fence(database: Database, given_up: str) -> None:
    submit(database)
    for fence in (1, 2, 3):
        held = claim(database, lease_s=-1)
        assert held.fence == fence
        match given_up:
            case "hand back":
                write(database, runs.release, held)
            case "fail":
                write(database, runs.fail, held, "ValueError: no", 9)
            case "lost":
                lose(database)
