"""A worker plays runs of one experiment together; what happens to one of them happens to no
other.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load
from sqlalchemy import update
from sqlalchemy.exc import OperationalError
from torch import Tensor

from fedcore import ExperimentSpec, RoundReport, Simulation
from fedcore.engine.round import PendingRound
from fedcore.platform.store import Database, RunRequest, Session, Status, experiments, lifecycle, recovery
from fedcore.platform.store.tables import RunRecord
from tests.builders.specifications import merged
from tests.support.polling import eventually
from tests.workers.deployment import (
    END_S,
    EXPERIMENT,
    MIDDLE,
    PRODUCTION_IN_CI,
    Deployment,
    assert_undisturbed,
)
from tests.workers.throttled_worker import SHORT_SLICES
from workers.celery_app import send_wakeup

SEEDS = [0, 1, 2]
ROUNDS = 12
BATCH = merged(
    EXPERIMENT,
    {"rounds": ROUNDS, "seeds": SEEDS, "local": {"epochs": None, "steps": 3}, "evaluation": {"every": 6}},
)


@cache
def alone(seed: int, rounds: int) -> tuple[list[RoundReport], dict[str, Tensor]]:
    """Result of a run by itself, in one go."""
    simulation = Simulation(ExperimentSpec.model_validate(merged(BATCH, {"rounds": rounds})), seed)
    return [simulation.advance() for _ in range(rounds)], simulation.model()


def assert_each_as_alone(deployment: Deployment, runs: Sequence[RunRecord], rounds: int = ROUNDS) -> None:
    """All succeeded, each row is there once, and rows and models are those of each run by itself,
    to rounding.
    """
    for run in runs:
        assert (run.status, run.error) == (Status.SUCCEEDED, None)
        expected, model = alone(run.seed, rounds)
        assert [row.round for row in deployment.rows(run.id)] == list(range(1, rounds + 1))
        for row, report in zip(deployment.rows(run.id), expected, strict=True):
            assert row.local_steps == report.local_steps
            assert row.test_loss == (report.test_loss and pytest.approx(report.test_loss, rel=1e-9))
        assert run.model is not None
        with deployment.storage.open(run.model) as file:
            stored = load(file.read())
        for name, tensor in model.items():
            torch.testing.assert_close(stored[name], tensor, rtol=1e-9, atol=1e-12)


def work(
    deployment: Deployment, act: Callable[[], None] = lambda: None, after: int = 3, **collaborators: Any
) -> None:
    """Play in this process; once some rounds of all are committed, `act`."""
    experiment, acted = _only(deployment), False

    def stopping() -> bool:
        nonlocal acted
        if not acted and all(run.done >= after for run in deployment.runs(experiment)):
            acted = True
            act()
        return False

    with deployment.with_settings(slice_seconds=0.001).runner(stopping, **collaborators) as runner:
        runner.work()


def _only(deployment: Deployment) -> str:
    with deployment.database.reading() as session:
        return session.query(RunRecord.experiment_id).distinct().scalar()


def change(deployment: Deployment, run: RunRecord, **values: object) -> None:
    with deployment.database.transaction() as session:
        session.execute(update(RunRecord).where(RunRecord.id == run.id).values(values))


def test_seeds_are_played_together_and_say_so(deployment: Deployment) -> None:
    experiment = deployment.submit(BATCH, nudge=False)
    work(deployment)
    assert_each_as_alone(deployment, deployment.runs(experiment))
    assert [run.provenance["batched_runs"] for run in deployment.runs(experiment)] == [3, 3, 3]


def test_batch_is_as_large_as_the_setting_says(embedded: Deployment) -> None:
    experiment = embedded.submit(BATCH, nudge=False)
    work(embedded, pacing=replace(SHORT_SLICES, batch_runs=2))
    assert sorted(run.provenance["batched_runs"] for run in embedded.runs(experiment)) == [1, 2, 2]


def test_paused_run_leaves_its_batch_and_comes_back_later(embedded: Deployment) -> None:
    experiment = embedded.submit(BATCH, nudge=False)
    paused, *others = embedded.runs(experiment)
    work(embedded, lambda: change(embedded, paused, request=RunRequest.PAUSE))
    paused, *others = embedded.runs(experiment)
    assert paused.status is Status.PAUSED
    assert 3 <= paused.done == len(embedded.rows(paused.id)) < ROUNDS
    assert_each_as_alone(embedded, others)
    with embedded.database.transaction() as session:
        lifecycle.resume(session, experiment)
    work(embedded)
    assert_each_as_alone(embedded, embedded.runs(experiment))


def test_cancelled_run_keeps_its_rounds_and_leaves_its_batch(embedded: Deployment) -> None:
    experiment = embedded.submit(BATCH, nudge=False)
    work(embedded, lambda: change(embedded, embedded.runs(experiment)[1], request=RunRequest.CANCEL))
    first, cancelled, last = embedded.runs(experiment)
    assert cancelled.status is Status.CANCELLED
    assert 3 <= cancelled.done == len(embedded.rows(cancelled.id)) < ROUNDS
    assert_each_as_alone(embedded, [first, last])


def test_lost_run_is_refused_and_the_others_go_on(embedded: Deployment) -> None:
    experiment = embedded.submit(BATCH, nudge=False)
    work(
        embedded,
        lambda: change(embedded, embedded.runs(experiment)[2], fence=RunRecord.fence + 1, worker="another"),
    )
    *others, lost = embedded.runs(experiment)
    assert (lost.status, lost.worker) == (Status.RUNNING, "another")
    assert lost.done == len(embedded.rows(lost.id)) < ROUNDS
    assert_each_as_alone(embedded, others)
    change(embedded, lost, lease_until=lost.created_at)
    with embedded.database.transaction() as session:
        assert recovery.requeue_expired(session, recovery.LeaseWatch(1.0), 3) == [lost.id]
    work(embedded)
    assert_each_as_alone(embedded, embedded.runs(experiment))


class Unreadable(Database):
    """A database that cannot be read from some moment on, but written."""

    away = False

    @contextmanager
    def reading(self) -> Iterator[Session]:
        if self.away:
            raise OperationalError("SELECT", {}, ConnectionError("gone"))
        with super().reading() as session:
            yield session


def test_run_lost_while_the_database_goes_away_leaves_the_others(
    embedded: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    unreadable = Unreadable(str(embedded.database.url))

    def lose() -> None:
        unreadable.away = True
        change(embedded, embedded.runs(experiment)[2], fence=RunRecord.fence + 1, worker="another")

    experiment = embedded.submit(BATCH, nudge=False)
    work(embedded, lose, database=unreadable)
    *others, lost = embedded.runs(experiment)
    assert f"not known whether run {lost.id} was deleted" in caplog.text
    assert (lost.status, lost.worker) == (Status.RUNNING, "another")
    assert_each_as_alone(embedded, others)


def test_run_that_fails_fails_alone(embedded: Deployment) -> None:
    experiment = embedded.submit(BATCH, nudge=False)
    folder = embedded.folder / "storage" / embedded.runs(experiment)[0].id

    def break_storage() -> None:
        folder.rename(folder.with_suffix(".away"))
        folder.write_text("a file where a folder should be")

    work(embedded, break_storage, pacing=replace(SHORT_SLICES, retry_s=0))
    failed, *others = embedded.runs(experiment)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert "NotADirectoryError" in failed.error
    assert_each_as_alone(embedded, others)


def test_runs_that_fail_together_go_on_apart(embedded: Deployment) -> None:
    errors = [MemoryError("too much at once")]

    class FailingOnce(Simulation):
        def begin(self) -> PendingRound:
            if self.round == 5 and errors:
                raise errors.pop()
            return super().begin()

    experiment = embedded.submit(BATCH, nudge=False)
    work(embedded, create=FailingOnce)
    assert not errors
    assert_each_as_alone(embedded, embedded.runs(experiment))
    assert {run.fence for run in embedded.runs(experiment)} == {1}


@pytest.mark.slow
@PRODUCTION_IN_CI
def test_worker_killed_in_the_middle_of_a_batch_is_replaced(deployment: Deployment) -> None:
    rounds = 100
    with deployment.running():
        experiment = deployment.submit(merged(BATCH, {"rounds": rounds}))
        eventually(lambda: all(run.done >= MIDDLE for run in deployment.runs(experiment)), timeout_s=END_S)
        before = deployment.runs(experiment)
        held = next(run for run in before if run.status is Status.RUNNING)
        deployment.send(held, signal.SIGKILL)
        eventually(lambda: any(run.fence > 1 for run in deployment.runs(experiment)), timeout_s=END_S)
        send_wakeup("default", deployment.broker_url)
        runs = deployment.ended(experiment)
    assert_each_as_alone(deployment, runs, rounds)


# Pause, resume, cancel, delete and priority take effect between two rounds of a run, and change
# nothing of its results.


@pytest.mark.slow
@PRODUCTION_IN_CI
def test_a_paused_run_stops_after_a_round_and_goes_on_when_resumed(deployment: Deployment) -> None:
    with deployment.running():
        experiment = deployment.submit()
        deployment.in_the_middle(experiment)
        with deployment.database.transaction() as session:
            lifecycle.pause(session, experiment)
        eventually(lambda: deployment.run(experiment).status is Status.PAUSED)
        paused = deployment.run(experiment)
        assert 0 < paused.done < EXPERIMENT["rounds"]
        assert len(deployment.rows(paused.id)) == paused.done
        with deployment.database.transaction() as session:
            lifecycle.resume(session, experiment)
        send_wakeup("default", deployment.broker_url)
        (run,) = deployment.ended(experiment)
    assert_undisturbed(deployment, run)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_cancelled_run_keeps_the_rounds_it_has_played(embedded: Deployment) -> None:
    with embedded.running():
        experiment = embedded.submit()
        embedded.in_the_middle(experiment)
        with embedded.database.transaction() as session:
            lifecycle.cancel(session, experiment)
        (run,) = embedded.ended(experiment)
    assert run.status is Status.CANCELLED
    assert 0 < run.done < EXPERIMENT["rounds"]
    assert [row.round for row in embedded.rows(run.id)] == list(range(1, run.done + 1))


@pytest.mark.slow
def test_the_files_of_a_run_deleted_while_it_is_played_are_removed_by_its_worker(
    embedded: Deployment,
) -> None:
    with embedded.running():
        experiment = embedded.submit()
        run = embedded.in_the_middle(experiment)
        with embedded.database.transaction() as session:
            experiments.delete(session, experiment)
        eventually(lambda: embedded.storage.keys(run.id) == [])


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_of_higher_priority_comes_first_and_the_other_then_goes_on(embedded: Deployment) -> None:
    with embedded.running():
        patient = embedded.submit()
        embedded.in_the_middle(patient)
        urgent = embedded.submit(merged(EXPERIMENT, {"rounds": 5, "execution": {"priority": 9}}))
        embedded.ended(urgent)
        assert embedded.run(patient).done < EXPERIMENT["rounds"]
        (run,) = embedded.ended(patient)
    assert_undisturbed(embedded, run)
