"""After something went wrong a run waits, longer each time.

The moment is in its row, where every worker sees it.
"""

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from fedcore.platform.store import Database, Status, backoff, lifecycle, recovery, runs
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.leases import ANY_MEMORY
from fedcore.platform.store.tables import RunRecord
from tests.builders.claims import ATTEMPTS, LEASE_S, QUEUE, claim, claimant, commit, commit_slice
from tests.builders.experiments import run_of, runs_of, submit
from tests.builders.transactions import read, write
from tests.support.clocks import settable_clock

HOUR_S = 3_600.0
"""A backoff that no test outlives; a pause of it is as long as there are."""


def pause_s(database: Database) -> float | None:
    """Seconds until the only run may be taken again."""
    with database.reading() as session:
        moment, not_before = session.execute(select(sql_now(), RunRecord.not_before)).one()
    return None if not_before is None else (not_before - moment) / timedelta(seconds=1)


def fail(database: Database, backoff_s: float = HOUR_S, error: str = "OSError: disk full") -> Status:
    """Take the next run, and end the claim by an error."""
    return write(database, runs.fail, claim(database), error, ATTEMPTS, backoff_s)


def lose(database: Database, backoff_s: float = HOUR_S) -> None:
    """Take the next run, and lose the claim with its worker."""
    claim(database, lease_s=-1)
    with database.transaction() as session:
        recovery.requeue_expired(session, recovery.LeaseWatch(LEASE_S), ATTEMPTS, backoff_s=backoff_s)


def time_passes(database: Database) -> None:
    """Every pause is over."""
    with database.transaction() as session:
        session.execute(
            update(RunRecord).where(RunRecord.not_before.is_not(None)).values(not_before=sql_now(-1))
        )


def nothing_waits(database: Database) -> bool:
    """True if no worker finds anything, or is to be woken."""
    return write(database, runs.claim, claimant(), LEASE_S) is None and not read(
        database, recovery.waiting_queues, {QUEUE: ANY_MEMORY}
    )


@pytest.mark.parametrize("attempts", range(1, 7))
def test_pauses_double_and_are_drawn_from_their_upper_half(attempts: int) -> None:
    drawn = [backoff.after_error(attempts, 2.0) for _ in range(200)]
    whole = 2.0**attempts
    assert whole / 2 <= min(drawn) < 0.6 * whole
    assert 0.9 * whole < max(drawn) <= whole


def test_no_pause_is_longer_than_the_longest() -> None:
    assert all(backoff.after_error(attempts, 2.0) <= backoff.LONGEST_S for attempts in (10, 100, 10_000))


def test_the_first_loss_of_a_worker_costs_no_pause_and_others_do() -> None:
    assert backoff.after_loss(0, 2.0) == backoff.after_loss(1, 2.0) == 0
    assert 1 <= backoff.after_loss(2, 2.0) <= 2 <= backoff.after_loss(3, 2.0) <= 4


def test_a_run_that_failed_is_nobodys_until_its_pause_is_over(database: Database) -> None:
    submit(database)
    assert fail(database) is Status.QUEUED
    left = pause_s(database)
    assert left is not None
    assert backoff.LONGEST_S / 2 - 60 < left <= backoff.LONGEST_S
    assert nothing_waits(database)
    time_passes(database)
    assert read(database, recovery.waiting_queues, {QUEUE: ANY_MEMORY}) == [QUEUE]
    assert claim(database).fence == 2
    assert pause_s(database) is None


def test_a_run_that_pauses_does_not_keep_another_from_going_on(database: Database) -> None:
    submit(database, execution={"priority": 9})
    fail(database)
    submit(database, execution={"priority": 1})
    held = claim(database)
    assert commit_slice(database, held, turn_over=True) == "continue"


def test_a_run_that_pauses_joins_no_batch(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1, 2])
    fail(database)
    held = claim(database)
    beside = write(database, runs.claim_batch, held, [0], 7, lease_s=LEASE_S, seen_s=LEASE_S)
    failed, *others = runs_of(database, experiment)
    assert failed.status is Status.QUEUED
    assert {held.run_id, *(one.run_id for one in beside)} == {run.id for run in others}


def test_a_lost_worker_is_replaced_at_once_and_one_lost_again_after_a_pause(database: Database) -> None:
    submit(database)
    lose(database)
    assert pause_s(database) is None
    lose(database)
    assert nothing_waits(database)


def test_a_clock_that_is_set_back_lengthens_no_pause_by_more_than_the_longest(database: Database) -> None:
    submit(database)
    with settable_clock(database) as set_clock:
        set_clock(HOUR_S)
        fail(database, 100.0)
        assert nothing_waits(database)
        set_clock(0.0)
        assert not nothing_waits(database)


def test_a_committed_round_ends_the_row_of_pauses(database: Database) -> None:
    submit(database)
    for _ in range(2):
        fail(database, 1.0)
        time_passes(database)
    commit(database, claim(database), lease_s=-1)
    with database.transaction() as session:
        recovery.requeue_expired(session, recovery.LeaseWatch(LEASE_S), ATTEMPTS)
    fail(database, 1.0)
    left = pause_s(database)
    assert left is not None
    assert left <= 1.0


@pytest.mark.parametrize("way", ["pause and resume", "cancel and retry"])
def test_retry_on_demand_need_not_wait(database: Database, way: str) -> None:
    experiment = submit(database)
    fail(database)
    stop, again = (
        (lifecycle.pause, lifecycle.resume)
        if way.startswith("pause")
        else (lifecycle.cancel, lifecycle.retry)
    )
    write(database, stop, experiment.id)
    write(database, again, experiment.id)
    assert claim(database).fence == 2


def test_a_failed_run_has_no_pause_and_is_retried_at_once(database: Database) -> None:
    experiment = submit(database)
    while fail(database) is not Status.FAILED:
        time_passes(database)
    assert run_of(database, experiment).not_before is None
    write(database, lifecycle.retry, experiment.id)
    assert claim(database).fence == ATTEMPTS + 1


def test_a_run_that_lost_its_worker_says_so_until_it_gets_on(database: Database) -> None:
    experiment = submit(database)
    lose(database)
    assert (run_of(database, experiment).error or "").startswith(
        "its worker was lost before a round was committed"
    )
    lose(database, 0)
    assert (run_of(database, experiment).error or "").startswith("its workers were lost 2 times in a row")
    commit(database, claim(database))
    assert run_of(database, experiment).error is None


def test_a_run_that_ended_well_has_no_error_though_its_last_write_had_to_be_repeated(
    database: Database,
) -> None:
    experiment = submit(database)
    commit(database, claim(database), 4, lease_s=-1)
    with database.transaction() as session:
        recovery.requeue_expired(session, recovery.LeaseWatch(LEASE_S), ATTEMPTS)
    fail(database, 0)
    write(database, runs.finish, claim(database), model="model", provenance={})
    run = run_of(database, experiment)
    assert (run.status, run.error) == (Status.SUCCEEDED, None)
