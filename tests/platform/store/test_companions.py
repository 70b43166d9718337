"""Companions: which runs, and how many, a worker takes beside the one it holds."""

import pytest

from fedcore.platform.store import Database, Status, runs, workers
from fedcore.platform.store.leases import Claim
from tests.platform.store.acts import LEASE_S, WORKER, claim, submit, the_runs, write

SEEN_S = 30.0


def beside(database: Database, held: Claim, arms: tuple[int, ...] = (0, 1), most: int = 100) -> list[Claim]:
    return write(database, runs.claim_batch, held, arms, most, lease_s=LEASE_S, seen_s=SEEN_S)


def present(database: Database, worker: str, queue: str = "default") -> None:
    write(database, workers.seen, worker, host="here", pid=1, queues=[queue], device="cpu", run_id=None)


def test_they_are_of_the_experiment_and_of_the_arms_asked_for(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1], sweep={"local.lr": [0.1, 0.2, 0.3]})
    held = claim(database)
    submit(database, seeds=[0, 1])
    taken = beside(database, held)
    assert [(other.experiment_id, other.arm, other.seed) for other in taken] == [
        (experiment.id, *run) for run in ((0, 1), (1, 0), (1, 1))
    ]
    assert {(other.worker, other.fence, other.queues) for other in taken} == {(WORKER, 1, held.queues)}
    assert [run.status for run in the_runs(database, experiment)] == [Status.RUNNING] * 4 + [
        Status.QUEUED
    ] * 2


def test_there_are_no_more_than_asked_for(database: Database) -> None:
    submit(database, seeds=list(range(5)))
    held = claim(database)
    assert beside(database, held, most=0) == []
    assert len(beside(database, held, most=3)) == 3


@pytest.mark.parametrize(("others", "taken"), [(0, 4), (1, 2), (2, 1), (4, 0), (9, 0)])
def test_what_waits_is_shared_with_workers_that_are_idle(database: Database, others: int, taken: int) -> None:
    submit(database, seeds=list(range(5)))
    held = claim(database)
    for other in range(others):
        present(database, f"idle-{other}")
    present(database, WORKER)
    present(database, "elsewhere", queue="another")
    assert len(beside(database, held)) == taken


def test_workers_that_come_one_after_another_leave_nothing_behind(database: Database) -> None:
    experiment = submit(database, seeds=list(range(5)))
    for worker in ("one", "two"):
        present(database, worker)
    parts = [1 + len(beside(database, claim(database, worker))) for worker in ("one", "two")]
    assert parts == [3, 2]
    assert {run.status for run in the_runs(database, experiment)} == {Status.RUNNING}
