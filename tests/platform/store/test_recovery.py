"""Runs whose worker is gone, and queues in which runs wait for idle workers."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from sqlalchemy import update

from fedcore.platform.store import (
    UNAVAILABLE,
    Database,
    RunRequest,
    Status,
    lifecycle,
    open_database,
    recovery,
    runs,
    workers,
)
from fedcore.platform.store.leases import ANY_MEMORY
from fedcore.platform.store.tables import RunRecord
from tests.builders.claims import ATTEMPTS, LEASE_S, QUEUE, claim, commit, lose
from tests.builders.experiments import run_of, runs_of, status_of, submit
from tests.builders.specifications import Document
from tests.builders.transactions import on_postgresql, read, write
from tests.support.clocks import settable_clock, shifted_sqlite
from tests.support.polling import eventually


def waiting(database: Database, idle_memory: dict[str, int]) -> list[str]:
    return read(database, recovery.waiting_queues, idle_memory)


def lose_claims(database: Database, count: int) -> list[Status]:
    """Lose `count` claims of the only run, one after another; its status after each."""
    found = []
    for _ in range(count):
        held = claim(database, lease_s=-1)
        lose(database)
        found.append(read(database, runs.find, held.run_id).status)
    return found


def test_a_run_whose_lease_ran_out_goes_back_to_its_place_in_the_queue(database: Database) -> None:
    experiment = submit(database)
    before = run_of(database, experiment)
    held = commit(database, claim(database), 2, lease_s=-1)
    assert lose(database) == [held.run_id]
    run = run_of(database, experiment)
    assert (run.status, run.done, run.checkpoint, run.queued_at) == (
        Status.QUEUED,
        2,
        held.checkpoint,
        before.queued_at,
    )
    assert (run.lease_until, run.fence) == (None, 1)
    assert status_of(database, experiment) is Status.RUNNING


def test_a_run_with_a_live_lease_is_left_to_its_worker(database: Database) -> None:
    submit(database)
    claim(database, lease_s=5)
    assert lose(database) == []


def test_a_run_fails_when_its_worker_was_lost_too_often_without_progress(database: Database) -> None:
    experiment = submit(database)
    assert lose_claims(database, 3) == [Status.QUEUED, Status.QUEUED, Status.FAILED]
    run = run_of(database, experiment)
    assert run.error is not None
    assert run.error.startswith(
        "its workers were lost 3 times in a row before a round was committed; the system ends processes"
    )
    assert run.finished_at is not None
    assert status_of(database, experiment) is Status.FAILED


def test_a_committed_round_buys_new_attempts(database: Database) -> None:
    submit(database)
    lose_claims(database, 2)
    commit(database, claim(database), lease_s=-1)
    lose(database)
    assert lose_claims(database, 3) == [Status.QUEUED, Status.QUEUED, Status.FAILED]


@pytest.mark.parametrize("error", ["MemoryError: 3 GiB", "its worker processes could not be started"])
def test_a_run_lost_after_an_error_fails_with_that_error(database: Database, error: str) -> None:
    experiment = submit(database)
    lose_claims(database, 1)
    write(database, runs.fail, claim(database), error, ATTEMPTS)
    assert lose_claims(database, 1) == [Status.FAILED]
    assert run_of(database, experiment).error == error


@pytest.mark.parametrize(("wish", "status"), [("pause", Status.PAUSED), ("cancel", Status.CANCELLED)])
def test_request_of_the_user_for_a_lost_run_counts_more_than_its_attempts(
    database: Database, wish: str, status: Status
) -> None:
    experiment = submit(database)
    lose_claims(database, 2)
    claim(database, lease_s=-1)
    write(database, getattr(lifecycle, wish), experiment.id)
    lose(database)
    run = run_of(database, experiment)
    assert (run.status, run.request, status_of(database, experiment)) == (status, RunRequest.NONE, status)


def test_lost_runs_are_taken_in_parts_when_there_are_many(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1, 2])
    for _ in range(3):
        claim(database, lease_s=-1)
    leases = recovery.LeaseWatch(LEASE_S)
    taken = [len(write(database, recovery.requeue_expired, leases, ATTEMPTS, 2)) for _ in range(3)]
    assert taken == [2, 1, 0]
    assert {run.status for run in runs_of(database, experiment)} == {Status.QUEUED}


def test_reconcilers_at_once_take_each_lost_run_once(database: Database) -> None:
    for seeds in ([0, 1, 2], [3, 4, 5]):
        submit(database, seeds=seeds)
    held = [claim(database, lease_s=-1) for _ in range(6)]
    with ThreadPoolExecutor(4) as reconcilers:
        taken = [run_id for part in reconcilers.map(lambda _: lose(database), range(4)) for run_id in part]
    assert sorted(taken) == sorted(one.run_id for one in held)


def test_queues_are_named_in_which_runs_wait_that_fit_idle_workers(database: Database) -> None:
    for queue, memory_bytes in {"default": 2, "large": 3, "other": 1}.items():
        submit(database, execution={"queue": queue})
        with database.transaction() as session:
            of_queue = RunRecord.queue == queue
            session.execute(update(RunRecord).where(of_queue).values(memory_bytes=memory_bytes))
    assert waiting(database, {"default": 2, "large": 2, "empty": 2}) == ["default"]


def test_runs_that_are_paused_or_held_by_workers_do_not_wait(database: Database) -> None:
    paused = submit(database)
    write(database, lifecycle.pause, paused.id)
    submit(database)
    claim(database)
    assert waiting(database, {QUEUE: ANY_MEMORY}) == []


@pytest.mark.parametrize("way", ["hand back", "lost", "resume", "retry"])
def test_a_run_that_is_queued_again_waits(database: Database, way: str) -> None:
    experiment = submit(database)
    match way:
        case "hand back":
            write(database, runs.release, claim(database))
        case "lost":
            lose_claims(database, 1)
        case "resume":
            write(database, lifecycle.pause, experiment.id)
            write(database, lifecycle.resume, experiment.id)
        case "retry":
            write(database, lifecycle.cancel, experiment.id)
            write(database, lifecycle.retry, experiment.id)
    assert waiting(database, {QUEUE: ANY_MEMORY}) == [QUEUE]


def test_workers_that_hold_a_run_are_not_idle(database: Database) -> None:
    about: Document = {"host": "here", "pid": 1, "device": "cpu", "packages": []}
    busy = {"queues": ["both", "busy"], "run_id": "run_1", "memory_bytes": 5}
    write(database, workers.seen, "busy", **about, **busy)
    write(database, workers.seen, "idle", **about, queues=["both"], run_id=None, memory_bytes=3)
    assert read(database, workers.memory_limits, 60.0) == {"both": 5, "busy": 5}
    assert read(database, workers.memory_limits, 60.0, idle_only=True) == {"both": 3}


@on_postgresql
def test_a_run_that_a_silent_transaction_has_locked_is_soon_free(
    database: Database, database_url: str
) -> None:
    submit(database)
    held = claim(database, lease_s=-1)
    with (
        closing(open_database(database_url, idle_s=0.2)) as silent,
        suppress(*UNAVAILABLE),
        silent.transaction() as session,
    ):
        runs.renew(session, held, -1)
        eventually(lambda: lose(database) == [held.run_id], timeout_s=60)


DAY_S, HOUR_S = 86_400.0, 3_600.0
JUMPS_S = (HOUR_S, DAY_S, -HOUR_S, -DAY_S)


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_lease_expires_by_the_time_that_passes_wherever_the_clock_is_set(
    database: Database, jump_s: float
) -> None:
    """Workers renew it three times in its length, as `workers.liveness` has it."""
    passed_s = 0.0
    leases = recovery.LeaseWatch(LEASE_S, lambda: passed_s)

    def lost() -> list[str]:
        return list(write(database, recovery.requeue_expired, leases, ATTEMPTS))

    with settable_clock(database) as set_clock:
        experiment = submit(database)
        held = claim(database)
        assert lost() == []
        for clock_s in (jump_s, 2 * jump_s, 0.0, jump_s):
            set_clock(clock_s)
            assert lost() == []
            for _ in range(3):
                passed_s += LEASE_S / 3
                write(database, runs.renew, held, LEASE_S)
                assert lost() == []
        # Now the worker is gone, and the clock is set once more.
        passed_s += LEASE_S - 1
        set_clock(0.0)
        assert lost() == []
        passed_s += 1
        assert lost() == [held.run_id]
        assert run_of(database, experiment).attempts == 1


@pytest.mark.parametrize("behind_s", [HOUR_S, -HOUR_S])
def test_a_worker_whose_clock_is_another_keeps_its_run(sqlite_url: str, behind_s: float) -> None:
    """On SQLite, where each process has the clock of its own."""
    passed_s = 0.0
    leases = recovery.LeaseWatch(LEASE_S, lambda: passed_s)
    with closing(open_database(sqlite_url)) as database, closing(open_database(sqlite_url)) as of_worker:
        experiment = submit(database)
        assert write(database, recovery.requeue_expired, leases, ATTEMPTS) == []
        with shifted_sqlite() as set_clock:
            set_clock(-behind_s)
            held = claim(of_worker)
        for _ in range(9):
            write(of_worker, runs.renew, held, LEASE_S)
            assert write(database, recovery.requeue_expired, leases, ATTEMPTS) == []
            passed_s += LEASE_S / 3
        run = run_of(database, experiment)
        assert (run.status, run.attempts, run.error) == (Status.RUNNING, 1, None)
        # Nobody renews it any more.
        passed_s += LEASE_S + max(0.0, -behind_s)
        assert write(database, recovery.requeue_expired, leases, ATTEMPTS) == [held.run_id]


def test_a_lease_that_was_over_before_anybody_watched_is_taken_at_its_word(database: Database) -> None:
    """A reconciler that starts after all others have ended need not wait."""
    submit(database, seeds=[0, 1])
    gone, held = claim(database, lease_s=-1.0), claim(database)
    leases = recovery.LeaseWatch(LEASE_S)
    assert write(database, recovery.requeue_expired, leases, ATTEMPTS) == [gone.run_id]
    assert write(database, runs.renew, held, LEASE_S) is not None


def test_a_renewal_after_the_look_keeps_the_run(database: Database) -> None:
    submit(database)
    held, passed_s = claim(database), 0.0
    leases = recovery.LeaseWatch(LEASE_S, lambda: passed_s)
    read(database, leases.expired)
    passed_s = LEASE_S + 1
    with database.reading() as session:
        (seen,) = leases.expired(session)
    assert seen[0] == held.run_id
    write(database, runs.renew, held, LEASE_S)
    assert write(database, recovery.requeue_expired, leases, ATTEMPTS) == []
