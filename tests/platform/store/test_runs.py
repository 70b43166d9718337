"""Runs in the hands of workers: committed, handed back, ended.

And what a stale claim may still do: nothing.
"""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from subprocess import PIPE
from typing import Any

import pytest
from sqlalchemy import select, update

from fedcore.errors import ResourceNotFoundError, StaleLeaseError
from fedcore.platform.store import (
    Database,
    Status,
    WorkerDirective,
    curves,
    experiments,
    lifecycle,
    runs,
    workers,
)
from fedcore.platform.store.leases import Claim
from fedcore.platform.store.tables import RunRecord
from tests.builders.claims import (
    LEASE_S,
    WORKER,
    change_rounds,
    claim,
    claimant,
    commit,
    commit_slice,
    fail,
    finish,
    lose,
)
from tests.builders.experiments import run_of, runs_of, status_of, submit
from tests.builders.transactions import on_postgresql, read, write

STALE: dict[str, Callable[[Database, Claim], Any]] = {
    "commit": commit_slice,
    "renew": lambda database, held: write(database, runs.renew, held, LEASE_S),
    "hand back": lambda database, held: write(database, runs.release, held),
    "fail": fail,
    "finish": lambda database, held: write(database, runs.finish, held, model="model", provenance={}),
}
"""Everything that a worker writes about its run."""


def overtake(database: Database, held: Claim, since: str) -> None:
    """Changes while the worker of `held` is frozen."""
    match since:
        case "ended":
            finish(database, held)
        case "paused" | "cancelled":
            write(
                database,
                {"paused": lifecycle.pause, "cancelled": lifecycle.cancel}[since],
                held.experiment_id,
            )
            lose(database)
        case _:
            lose(database)
    if since == "claimed again":
        claim(database, "worker-2")


def columns(database: Database, run_id: str) -> dict[str, Any]:
    """The row of a run."""
    with database.reading() as session:
        query = select(RunRecord.__table__).where(RunRecord.id == run_id)
        return dict(session.execute(query).mappings().one())


@pytest.mark.parametrize("since", ["lost", "claimed again", "paused", "cancelled", "ended"])
def test_a_stale_claim_is_refused_and_changes_nothing(database: Database, since: str) -> None:
    submit(database)
    held = commit(database, claim(database), lease_s=-1)
    overtake(database, held, since)
    before = columns(database, held.run_id)
    for act in STALE.values():
        with pytest.raises(
            StaleLeaseError, match=rf"run {held.run_id} is no longer held by {WORKER} \(claim 1, round 1\)"
        ):
            act(database, held)
    assert columns(database, held.run_id) == before
    assert len(read(database, curves.after, held.run_id)) == before["done"]


def test_the_claim_on_a_run_that_was_deleted_is_refused(database: Database) -> None:
    experiment = submit(database)
    held = claim(database)
    write(database, experiments.delete, experiment.id)
    for act in STALE.values():
        with pytest.raises(StaleLeaseError):
            act(database, held)


def gone_back(database: Database, run_id: str, **values: Any) -> None:
    """A run as a replica has it that takes over without the last commits: its row, and the rounds
    up to that.
    """
    with database.transaction() as session:
        session.execute(update(RunRecord).where(RunRecord.id == run_id).values(values))
    change_rounds(database, run_id, lambda rows: rows[: values["done"]])


def test_a_run_does_not_end_where_the_database_has_lost_its_last_rounds(database: Database) -> None:
    experiment = submit(database)
    held = commit(database, commit(database, claim(database), 2), 2)
    gone_back(database, held.run_id, done=2)
    for end in (runs.finish, runs.pause_at_rung):
        with pytest.raises(StaleLeaseError):
            write(database, end, held, model="model", provenance={})
    assert run_of(database, experiment).status is Status.RUNNING


def test_a_fence_that_a_database_gives_out_again_is_good_for_the_worker_that_has_it_now(
    database: Database,
) -> None:
    experiment = submit(database)
    before = claim(database)
    gone_back(database, before.run_id, done=0, fence=0, status=Status.QUEUED, worker=None, lease_until=None)
    held = claim(database, "worker-2")
    assert held.fence == before.fence
    for act in STALE.values():
        with pytest.raises(StaleLeaseError):
            act(database, before)
    commit(database, held, 2)
    assert not read(database, runs.committed, before, 2)
    assert run_of(database, experiment).worker == "worker-2"


def test_a_claim_whose_lease_ran_out_is_good_until_another_takes_it(database: Database) -> None:
    experiment = submit(database)
    held = claim(database, lease_s=-1)
    assert commit_slice(database, held) is WorkerDirective.CONTINUE
    assert lose(database) == []
    assert run_of(database, experiment).done == 1


def test_a_commit_stores_its_rounds_and_moves_the_run_on(database: Database) -> None:
    experiment = submit(database)
    held = claim(database, lease_s=1)
    write(database, runs.fail, held, "ValueError: once", 3)
    held = claim(database, lease_s=1)
    before = run_of(database, experiment)
    held = commit(database, held, 2)
    run = run_of(database, experiment)
    assert (run.done, run.checkpoint, run.seconds, run.attempts, run.error) == (
        2,
        held.checkpoint,
        1.0,
        0,
        None,
    )
    assert (before.attempts, before.error) == (2, "ValueError: once")
    assert run.lease_until is not None
    assert before.lease_until is not None
    assert run.lease_until > before.lease_until
    assert [row.round for row in read(database, curves.after, run.id)] == [1, 2]


def test_a_commit_that_does_not_follow_what_is_done_is_refused(database: Database) -> None:
    submit(database)
    held = claim(database)
    commit(database, held)
    with pytest.raises(StaleLeaseError):
        commit_slice(database, held)


def test_a_commit_is_recognised_when_the_connection_broke_during_it(database: Database) -> None:
    submit(database)
    held = claim(database)
    assert not write(database, runs.committed, held, 2)
    commit(database, held, 2)
    assert write(database, runs.committed, held, 2)


def test_the_commit_of_another_claim_is_not_taken_for_ones_own(database: Database) -> None:
    submit(database)
    held = claim(database, lease_s=-1)
    lose(database)
    commit(database, claim(database, "worker-2"), 2)
    assert not write(database, runs.committed, held, 2)


def test_only_one_of_two_commits_at_once_under_one_claim_goes_through(database: Database) -> None:
    experiment = submit(database)
    held = claim(database)

    def try_to(_: int) -> bool:
        try:
            commit_slice(database, held)
        except StaleLeaseError:
            return False
        return True

    with ThreadPoolExecutor(4) as twins:
        assert sum(twins.map(try_to, range(4))) == 1
    assert [row.round for row in read(database, curves.after, run_of(database, experiment).id)] == [1]


def test_a_heartbeat_lets_the_lease_run_on(database: Database) -> None:
    experiment = submit(database)
    held = claim(database, lease_s=-1)
    assert write(database, runs.renew, held, LEASE_S) is WorkerDirective.CONTINUE
    assert lose(database) == []
    assert run_of(database, experiment).status is Status.RUNNING


def test_a_run_handed_back_joins_the_end_of_the_queue(database: Database) -> None:
    experiment = submit(database)
    before = run_of(database, experiment)
    held = commit(database, claim(database))
    write(database, runs.release, held)
    run = run_of(database, experiment)
    assert (run.status, run.done, run.checkpoint, run.lease_until) == (
        Status.QUEUED,
        1,
        held.checkpoint,
        None,
    )
    assert run.queued_at > before.queued_at
    assert claim(database).checkpoint == held.checkpoint


def test_to_hand_a_run_back_is_no_failed_attempt(database: Database) -> None:
    experiment = submit(database)
    for _ in range(5):
        write(database, runs.release, claim(database))
    assert run_of(database, experiment).attempts == 0


def test_a_finished_run_says_what_came_of_it(database: Database) -> None:
    experiment = submit(database)
    held = commit(database, claim(database), 3)
    write(database, runs.finish, held, model="model", provenance={"engine": "vectorised"}, diverged_round=3)
    run = run_of(database, experiment)
    assert (run.status, run.model, run.provenance, run.diverged_round) == (
        Status.SUCCEEDED,
        "model",
        {"engine": "vectorised"},
        3,
    )
    assert (run.lease_until, run.worker) == (None, WORKER)
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.started_at <= run.finished_at


def test_errors_are_forgiven_while_attempts_are_left(database: Database) -> None:
    experiment = submit(database)
    outcomes = [
        write(database, runs.fail, claim(database), f"ValueError: {number}", 3) for number in (1, 2, 3)
    ]
    assert outcomes == [Status.QUEUED, Status.QUEUED, Status.FAILED]
    run = run_of(database, experiment)
    assert (run.error, run.attempts, status_of(database, experiment)) == ("ValueError: 3", 3, Status.FAILED)
    assert run.finished_at is not None


def test_an_error_is_stored_whatever_characters_it_has(database: Database) -> None:
    experiment = submit(database)
    fail(database, claim(database), "ValueError: \0 or \ud800 or é")
    assert run_of(database, experiment).error == "ValueError: ? or ? or é"


def test_a_committed_round_buys_new_attempts(database: Database) -> None:
    submit(database)
    for _ in range(2):
        write(database, runs.fail, claim(database), "ValueError: no", 3)
    commit(database, claim(database), lease_s=-1)
    lose(database)
    outcomes = [write(database, runs.fail, claim(database), "ValueError: no", 3) for _ in range(3)]
    assert outcomes == [Status.QUEUED, Status.QUEUED, Status.FAILED]


@pytest.mark.parametrize(
    ("wish", "status"), [(lifecycle.pause, Status.PAUSED), (lifecycle.cancel, Status.CANCELLED)]
)
def test_an_error_does_not_keep_a_request_from_being_applied(
    database: Database, wish: Callable[..., Any], status: Status
) -> None:
    experiment = submit(database)
    held = claim(database)
    write(database, wish, experiment.id)
    assert write(database, runs.fail, held, "ValueError: no", 1) is status


def test_the_runs_of_an_experiment_come_in_order_and_in_parts(database: Database) -> None:
    experiment = submit(database, seeds=[5, 1, 3])
    everything = runs_of(database, experiment)
    assert [run.seed for run in everything] == [5, 1, 3]
    rest = read(database, runs.of_experiment, experiment.id, after=everything[0].id, limit=1)
    assert [run.id for run in rest] == [everything[1].id]


def test_a_run_is_found_by_its_id(database: Database) -> None:
    run = run_of(database, submit(database))
    assert read(database, runs.find, run.id).id == run.id
    with pytest.raises(ResourceNotFoundError, match="there is no run 'run_none'"):
        read(database, runs.find, "run_none")


def test_stored_error_holds_no_secret(database: Database) -> None:
    experiment = submit(database)
    fail(
        database,
        claim(database),
        "OSError: ftp://fedq:hunter2@files/run said no, Bearer hunter2, key fq_0a1b_hunter2",
    )
    told = read(database, runs.of_experiment, experiment.id)[0].error
    assert told == "OSError: ftp://fedq:***@files/run said no, Bearer ***, key fq_0a1b_***"
    assert read(database, experiments.find, experiment.id).error == told


# Claims: each run is one worker's at a time, threads and processes alike.

CLAIMING = """
import sys
from fedcore.platform.store import open_database, runs
from fedcore.platform.store.leases import Claimant

database = open_database(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
while True:
    with database.transaction() as session:
        held = runs.claim(session, Claimant(sys.argv[2], ("default",)), 60.0)
    if held is None:
        break
    print(held.run_id)
"""
"""A process that claims until nothing waits, once its input is closed."""


def take_all(database: Database, worker: str) -> list[Claim]:
    """Claim until nothing waits."""
    taken = []
    while held := write(database, runs.claim, claimant(worker), LEASE_S):
        taken.append(held)
    return taken


def test_a_claim_has_what_the_work_needs(database: Database) -> None:
    experiment = submit(database, seeds=[3], sweep={"local.lr": [0.1, 0.05]})
    held = claim(database)
    assert (held.experiment_id, held.arm, held.seed) == (experiment.id, 0, 3)
    assert (held.worker, held.fence, held.done, held.rounds, held.checkpoint) == (WORKER, 1, 0, 4, None)
    assert held.spec == experiment.spec


def test_a_claim_is_written_to_the_run(database: Database) -> None:
    experiment = submit(database)
    before = datetime.now(UTC)
    claim(database)
    run = run_of(database, experiment)
    assert (run.status, run.worker, run.fence, run.attempts) == (Status.RUNNING, WORKER, 1, 1)
    assert run.lease_until is not None
    assert 50 < (run.lease_until - before).total_seconds() < 70
    assert status_of(database, experiment) is Status.RUNNING


def test_nothing_is_claimed_where_nothing_waits(database: Database) -> None:
    experiment = submit(database)
    write(database, lifecycle.pause, experiment.id)
    assert take_all(database, WORKER) == []


def test_workers_that_claim_at_once_take_each_run_once(database: Database) -> None:
    experiment = submit(database, seeds=list(range(24)))
    with ThreadPoolExecutor(8) as workers:
        hands = list(workers.map(lambda number: take_all(database, f"worker-{number}"), range(8)))
    taken = sorted(held.run_id for hand in hands for held in hand)
    assert taken == [run.id for run in runs_of(database, experiment)]
    assert {run.fence for run in runs_of(database, experiment)} == {1}


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
        run.id for run in runs_of(database, experiment)
    ]


@on_postgresql
def test_a_claim_does_not_wait_for_one_that_is_just_being_made(database: Database) -> None:
    first, second = (submit(database) for _ in range(2))
    with database.transaction() as session:
        held = runs.claim(session, claimant(), LEASE_S)
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


# Batches: which runs, and how many, a worker takes beside the one it holds.

SEEN_S = 30.0


def beside(database: Database, held: Claim, arms: tuple[int, ...] = (0, 1), most: int = 100) -> list[Claim]:
    return write(database, runs.claim_batch, held, arms, most, lease_s=LEASE_S, seen_s=SEEN_S)


def present(database: Database, worker: str, queue: str = "default") -> None:
    write(database, workers.seen, worker, host="here", pid=1, queues=[queue], device="cpu", run_id=None)


def test_runs_of_a_batch_are_of_the_experiment_and_of_the_arms_asked_for(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1], sweep={"local.lr": [0.1, 0.2, 0.3]})
    held = claim(database)
    submit(database, seeds=[0, 1])
    taken = beside(database, held)
    assert [(other.experiment_id, other.arm, other.seed) for other in taken] == [
        (experiment.id, *run) for run in ((0, 1), (1, 0), (1, 1))
    ]
    assert {(other.worker, other.fence, other.claimant) for other in taken} == {(WORKER, 1, held.claimant)}
    assert [run.status for run in runs_of(database, experiment)] == [Status.RUNNING] * 4 + [Status.QUEUED] * 2


def test_batch_has_no_more_runs_than_asked_for(database: Database) -> None:
    submit(database, seeds=list(range(5)))
    held = claim(database)
    assert beside(database, held, most=0) == []
    assert len(beside(database, held, most=3)) == 3


@pytest.mark.parametrize(("others", "taken"), [(0, 4), (1, 2), (2, 1), (4, 0), (9, 0)])
def test_waiting_runs_are_shared_with_workers_that_are_idle(
    database: Database, others: int, taken: int
) -> None:
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
    assert {run.status for run in runs_of(database, experiment)} == {Status.RUNNING}
