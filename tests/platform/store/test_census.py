"""The census: what there is at one moment."""

import pytest

from fedcore.platform.store import Database, Status, service_metrics
from fedcore.platform.store.service_metrics import EndedRuns
from tests.platform.store.acts import claim, commit, finish, read, submit
from tests.platform.store.test_workers import beat


def test_it_counts_runs_by_queue_and_status_and_says_how_long_they_wait(database: Database) -> None:
    submit(database, seeds=[0, 1])
    submit(database, execution={"queue": "gpu"})
    commit(database, claim(database), 3)
    taken = read(database, service_metrics.snapshot, 60, EndedRuns())
    assert {(group.queue, group.status): group.runs for group in taken.groups} == {
        ("default", Status.QUEUED): 1,
        ("default", Status.RUNNING): 1,
        ("gpu", Status.QUEUED): 1,
    }
    assert all(0 <= group.longest_s < 60 for group in taken.groups)
    assert (taken.totals["rounds"], taken.totals["claims"]) == (3, 1)


def test_it_lists_the_workers_that_were_seen_lately(database: Database) -> None:
    beat(database, "w1", run_id="run_1")
    assert [worker.id for worker in read(database, service_metrics.snapshot, 60, EndedRuns()).workers] == [
        "w1"
    ]
    assert read(database, service_metrics.snapshot, -1, EndedRuns()).workers == []


def test_many_ended_runs_are_counted_once_a_minute(database: Database) -> None:
    moment = [0.0]
    few, many = EndedRuns(most=9), EndedRuns(most=0, clock=lambda: moment[0])
    for count in (1, 2):
        submit(database)
        finish(database, claim(database))
        assert [group.runs for group in read(database, few.read)] == [count]
        assert [group.runs for group in read(database, many.read)] == [1]
    moment[0] = 60.0
    assert read(database, many.read)[0][:3] == ("default", Status.SUCCEEDED, 2)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_runs_are_counted_in_an_index(database: Database) -> None:
    with database.reading() as session:
        plan = session.connection().exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT queue, status, count(*), min(queued_at) FROM run"
            " WHERE status IN ('failed', 'succeeded') GROUP BY status, queue"
        )
        assert [step[-1] for step in plan] == ["SEARCH run USING COVERING INDEX run_by_turn (status=?)"]
