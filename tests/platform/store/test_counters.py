"""Tallies: totals that only grow, whoever counts and whatever is deleted."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fedcore.platform.store import Database, counters, experiments, runs, workers
from tests.builders.claims import claim, commit, commit_slice, finish, lose, report
from tests.builders.experiments import submit
from tests.builders.transactions import read, write
from tests.platform.store.test_workers import beat


def totals(database: Database) -> dict[str, float]:
    return read(database, counters.totals)


def test_counts_of_sources_add_up(database: Database) -> None:
    for source, rounds in (("w1", 2), ("w2", 3), ("w1", 5)):
        write(database, counters.add, source, {"rounds": rounds, "claims": 1})
    assert totals(database) == {"rounds": 10, "claims": 3}


def test_nothing_is_lost_when_many_count_at_once(database: Database) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(
            threads.map(
                lambda index: write(database, counters.add, f"w{index % 2}", {"a": 1, "b": 2}), range(40)
            )
        )
    assert totals(database) == {"a": 40, "b": 80}


def test_the_totals_of_workers_outlive_them(database: Database) -> None:
    for worker_id in ("w1", "w2", "w3"):
        beat(database, worker_id)
        write(database, counters.add, worker_id, {"rounds": 1})
    write(database, workers.gone, "w1")
    assert write(database, workers.forget, -1) == 2
    assert totals(database) == {"rounds": 3}
    write(database, counters.add, "w1", {"rounds": 1})
    assert totals(database) == {"rounds": 4}


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, 0.1), (0.1, 0.1), (0.11, 0.25), (300.0, 300.0), (301.0, float("inf"))]
)
def test_a_slice_counts_under_the_least_bound_that_it_keeps(
    database: Database, seconds: float, bound: float
) -> None:
    write(database, counters.add_slice, "w1", 3, seconds)
    assert totals(database) == {"rounds": 3, "slice_seconds": seconds, counters.slice_buckets(bound): 1}


def test_events_of_runs_are_counted_once_and_stay_when_the_runs_are_deleted(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1, 2])
    finish(database, commit(database, claim(database)))
    write(database, runs.fail, claim(database), "OSError: no", 3)
    claim(database, lease_s=-1)
    assert lose(database)
    write(database, experiments.delete, experiment.id)
    slices = {"slice_seconds": 2.0, counters.slice_buckets(0.5): 1, counters.slice_buckets(2.5): 1}
    assert totals(database) == {"claims": 3, "rounds": 4, **slices, "errors": 1, "expiries": 1}


def test_a_slice_that_is_refused_counts_nothing(database: Database) -> None:
    submit(database)
    stale = claim(database, lease_s=-1)
    lose(database)
    with pytest.raises(Exception, match="no longer held"):
        commit_slice(database, stale, [report(1)])
    assert "rounds" not in totals(database)
