"""How far experiments have come, and how long they will take."""

import pytest

from fedcore.platform.store import Database, Status, experiments, lifecycle, progress, runs
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.progress import UnfinishedRuns
from tests.builders.claims import claim, commit, fail, finish
from tests.builders.experiments import runs_of, submit
from tests.builders.specifications import ONE_RUN, Document, specification
from tests.builders.transactions import read, write

# Every round of these runs takes half a second, and every run has four.


def test_nothing_is_known_before_the_first_round(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1])
    found = read(database, progress.progress, experiment.id)
    assert (found.done, found.rounds, found.runs, found.eta_s) == (0, 8, {Status.QUEUED: 2}, None)
    claim(database)
    assert read(database, progress.progress, experiment.id).eta_s is None


@pytest.mark.parametrize(
    ("changes", "arms", "rounds"),
    [
        ({}, 1, 4),
        ({"seeds": [3, 1, 2]}, 1, 12),
        ({"sweep": {"rounds": [4, 7], "local.lr": [0.1, 1e3]}}, 4, 22),
    ],
)
def test_an_experiment_that_was_just_created_has_all_its_runs_and_arms(
    database: Database, changes: Document, arms: int, rounds: int
) -> None:
    spec = specification(ONE_RUN, **changes)
    made = write(database, experiments.create, NewExperiment(spec))
    found, points = read(database, progress.overview, made.record.id)
    assert (found.done, found.rounds, found.runs) == (0, rounds, {Status.QUEUED: len(spec.seeds) * arms})
    assert [(point.arm, point.name) for point in points] == [(arm.index, arm.name) for arm in spec.arms()]


def test_rounds_are_counted_over_all_runs(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1, 2])
    finish(database, claim(database))
    commit(database, claim(database), 3)
    found = read(database, progress.progress, experiment.id)
    assert (found.done, found.rounds) == (7, 12)
    assert found.runs == {Status.SUCCEEDED: 1, Status.RUNNING: 1, Status.QUEUED: 1}


@pytest.mark.parametrize(("running", "eta_s"), [(1, 5.5), (2, 2.5), (3, 1.5)])
def test_the_time_left_counts_on_as_many_running_as_now(
    database: Database, running: int, eta_s: float
) -> None:
    experiment = submit(database, seeds=[0, 1, 2])
    for _ in range(running):
        commit(database, claim(database))
    assert read(database, progress.progress, experiment.id).eta_s == pytest.approx(eta_s)


def test_runs_that_have_ended_take_no_more_time(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1, 2])
    fail(database, commit(database, claim(database)))
    commit(database, claim(database), 2)
    assert read(database, progress.progress, experiment.id).eta_s == pytest.approx((2 + 4) * 0.5)


def test_a_run_that_diverged_asks_for_no_more_rounds_than_it_has(database: Database) -> None:
    experiment = submit(database)
    held = commit(database, claim(database), 3)
    write(database, runs.finish, held, model=None, provenance={}, diverged_round=3)
    found = read(database, progress.progress, experiment.id)
    assert (found.done, found.rounds, found.eta_s) == (3, 3, None)


def test_the_progress_of_several_experiments_is_found_at_once(database: Database) -> None:
    first, second = submit(database), submit(database, seeds=[0, 1])
    commit(database, claim(database), 2)
    found = read(database, progress.progress_of, [second.id, first.id])
    assert {one: (each.done, each.rounds) for one, each in found.items()} == {
        first.id: (2, 4),
        second.id: (0, 8),
    }


def test_each_run_has_a_position(database: Database) -> None:
    experiment = submit(database, seeds=[0, 1])
    commit(database, claim(database), 2)
    first, second = (run.id for run in runs_of(database, experiment))
    positions = read(database, progress.experiment_snapshots, [experiment.id])[experiment.id].runs
    assert list(positions.items()) == [(first, (Status.RUNNING, 2)), (second, (Status.QUEUED, 0))]


def test_the_depth_of_a_queue_counts_what_has_not_ended(database: Database) -> None:
    paused = submit(database, execution={"queue": "gpu"})
    write(database, lifecycle.pause, paused.id)
    submit(database, seeds=[0, 1, 2, 3])
    finish(database, claim(database))
    commit(database, claim(database), 3)
    assert read(database, progress.queue_depths) == [
        UnfinishedRuns("default", Status.QUEUED, runs=2, rounds_left=8),
        UnfinishedRuns("default", Status.RUNNING, runs=1, rounds_left=1),
        UnfinishedRuns("gpu", Status.PAUSED, runs=1, rounds_left=4),
    ]
