"""Rates at which runs went, on both databases."""

from typing import Any

import pytest

from fedcore.platform.store import Database, Status, experiments, service_metrics
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.service_metrics import MOST_RUNS, EndedRuns
from tests.builders.claims import claim, commit, commit_slice, finish, report
from tests.builders.experiments import submit
from tests.builders.specifications import ONE_RUN, specification
from tests.builders.transactions import read, write
from tests.platform.store.test_workers import beat

KIND = "logistic, engine auto"


def _submit(
    database: Database, kind: str = KIND, work: float = 60.0, owner: str = "ada", **changes: Any
) -> None:
    new = NewExperiment(specification(ONE_RUN, **changes), owner=owner, work=[(kind, work)])
    write(database, experiments.create, new)


def _rates(database: Database, kind: str = KIND, owner: str | None = None) -> list[float]:
    return read(database, service_metrics.recent_rates, kind, owner)


def test_rates_are_the_work_of_committed_rounds_by_their_seconds_latest_first(database: Database) -> None:
    _submit(database, seeds=[0, 1])
    assert _rates(database) == []
    for seconds in (2.0, 6.0):
        held = claim(database)
        commit_slice(database, held, [report(round, seconds=seconds) for round in (1, 2)])
    assert _rates(database) == pytest.approx([10.0, 30.0])


def test_only_runs_of_the_kind_and_of_the_owner_count(database: Database) -> None:
    _submit(database)
    commit_slice(database, claim(database), [report(1, seconds=2.0)])
    assert _rates(database, owner="ada") == [30.0]
    assert _rates(database, owner="bob") == []
    assert _rates(database, "mlp, engine auto") == []


def test_runs_whose_work_is_unknown_or_that_took_no_time_do_not_count(database: Database) -> None:
    _submit(database, work=0.0)
    commit_slice(database, claim(database), [report(1)])
    _submit(database)
    commit_slice(database, claim(database), [report(1, seconds=0.0)])
    assert _rates(database) == []


def test_the_latest_runs_count(database: Database) -> None:
    _submit(database, seeds=list(range(MOST_RUNS + 1)))
    for number in range(MOST_RUNS + 1):
        commit_slice(database, claim(database, f"worker-{number}"), [report(1, seconds=60.0 / (number + 1))])
    assert sorted(_rates(database)) == pytest.approx(range(2, MOST_RUNS + 2))


# Metrics of the whole service at one moment.


def test_metrics_count_runs_by_queue_and_status_and_say_how_long_they_wait(database: Database) -> None:
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


def test_metrics_list_the_workers_that_were_seen_lately(database: Database) -> None:
    beat(database, "w1", run_id="run_1")
    assert [worker.id for worker in read(database, service_metrics.snapshot, 60, EndedRuns()).workers] == [
        "w1"
    ]
    assert read(database, service_metrics.snapshot, -1, EndedRuns()).workers == []


def test_ended_runs_are_counted_once_a_minute(database: Database) -> None:
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
