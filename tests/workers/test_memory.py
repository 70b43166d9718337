"""A run for which memory runs out is played again with less.

If that is not enough it fails and says so, and others go on.
"""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from fedcore import ExperimentSpec
from fedcore.engine import vectorised
from fedcore.platform.store import Database, Status, experiments, recovery, runs
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.tables import RunRecord
from fedcore.settings import Settings
from fedcore.simulation.out_of_memory import MEMORY_DIVISOR
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from tests.builders.claims import ATTEMPTS, claim, claimant, finish, lose
from tests.builders.experiments import run_of, submit
from tests.builders.specifications import merged
from tests.builders.transactions import read
from tests.support.forks import Forked, forked
from tests.support.polling import eventually
from tests.workers.deployment import (
    END_S,
    EXPERIMENT,
    PRODUCTION_IN_CI,
    Deployment,
    assert_undisturbed,
    undisturbed,
)
from tests.workers.worker_with_counted_kills import KILLS
from workers import memory
from workers.celery_app import send_wakeup
from workers.memory import FOLDER, FORGET_S, HeldRuns, host_memory_bytes, memory_limit, requeue_oom_killed

SHORT = merged(EXPERIMENT, {"rounds": 6})
GREEDY = {
    "name": "greedy",
    "problem": {"dataset": {"kind": "quadratic", "generate": {"dim": 10_000, "clients": 8}}},
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "steps": 1},
    "rounds": 2,
}
"""Its Hessians take 6.4 GB."""


def work(deployment: Deployment) -> None:
    """Play what waits, in this process."""
    with deployment.runner() as runner:
        runner.work()


def scarce(monkeypatch: pytest.MonkeyPatch, room: int, error: Exception) -> list[int]:
    """Let the engine `vectorised` run out of memory with more than `room` clients at a time.

    How many it had each time.
    """
    advance, asked = vectorised._advance, list[int]()

    def limited(rows: Any, *given: Any) -> Any:
        asked.append(len(rows))
        if len(rows) > room:
            raise error
        return advance(rows, *given)

    monkeypatch.setattr(vectorised, "_advance", limited)
    return asked


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """The system gives this process so much more memory, and no more."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


SHORTAGES = (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), MemoryError("8 GiB"))


@pytest.mark.parametrize("error", SHORTAGES, ids=["GPU", "host"])
def test_a_run_is_played_again_with_fewer_clients_at_a_time_until_there_is_room(
    embedded: Deployment, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    expected, model = undisturbed(SHORT["rounds"])
    experiment, asked = embedded.submit(SHORT, nudge=False), scarce(monkeypatch, 1, error)
    work(embedded)
    run = embedded.run(experiment)
    assert (run.fence, run.shortages, run.provenance["memory_divisor"]) == (2, 1, MEMORY_DIVISOR)
    assert asked[0] == 4
    assert set(asked[1:]) == {1}
    assert (run.status, run.error, run.model) == (Status.SUCCEEDED, None, f"{run.id}/model-2.safetensors")
    rows = embedded.rows(run.id)
    assert [(row.round, row.local_steps) for row in rows] == [
        (report.round, report.local_steps) for report in expected
    ]
    assert [row.test_loss for row in rows] == pytest.approx(
        [report.test_loss for report in expected], rel=1e-9
    )
    with embedded.storage.open(f"{run.id}/model-2.safetensors") as file:
        torch.testing.assert_close(load(file.read()), model, rtol=1e-9, atol=1e-12)


def test_a_run_for_which_memory_is_never_enough_fails_and_says_so_and_others_are_untouched(
    embedded: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = embedded.submit(merged(SHORT, {"execution": {"engine": "parallel", "priority": 1}}), nudge=False)
    experiment, asked = embedded.submit(SHORT, nudge=False), scarce(monkeypatch, 0, SHORTAGES[0])
    work(embedded)
    failed, other = embedded.run(experiment), embedded.run(quiet)
    assert (failed.status, failed.attempts, failed.shortages) == (Status.FAILED, 3, 3)
    assert (failed.error or "").startswith(
        "memory ran out (OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB); use fewer clients"
    )
    assert asked == [4, 1, 1]
    assert (other.status, other.fence, other.shortages, other.provenance["memory_divisor"]) == (
        Status.SUCCEEDED,
        1,
        0,
        1,
    )


def test_an_engine_that_promises_bits_keeps_them_after_a_shortage(embedded: Deployment) -> None:
    document = merged(SHORT, {"execution": {"engine": "parallel"}})
    shortages = [MemoryError("8 GiB")]

    class ShortOnce(Simulation):
        def advance(self) -> RoundReport:
            if shortages:
                raise shortages.pop()
            return super().advance()

    experiment = embedded.submit(document, nudge=False)
    with embedded.runner(create=ShortOnce) as runner:
        runner.work()
    run, alone = embedded.run(experiment), _alone(document)
    assert (run.status, run.fence, run.shortages) == (Status.SUCCEEDED, 2, 1)
    assert [row.test_loss for row in embedded.rows(run.id)] == alone


def test_a_batch_in_which_memory_runs_out_costs_no_attempt(
    embedded: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, asked = (
        embedded.submit(merged(SHORT, {"seeds": [0, 1, 2]}), nudge=False),
        scarce(monkeypatch, 4, SHORTAGES[1]),
    )
    work(embedded)
    for run in embedded.runs(experiment):
        assert (run.status, run.fence, run.shortages) == (Status.SUCCEEDED, 1, 0)
        assert [row.round for row in embedded.rows(run.id)] == list(range(1, 7))
    assert asked[0] == 12
    assert set(asked[1:]) == {4}


def test_a_problem_that_does_not_fit_fails_with_what_the_system_says_and_others_are_untouched(
    embedded: Deployment,
) -> None:
    quiet = embedded.submit(merged(SHORT, {"execution": {"priority": 1}}), nudge=False)
    greedy = embedded.submit(merged(GREEDY, {"execution": {"priority": 9}}), nudge=False)
    with at_most(2 << 30):
        work(embedded)
    failed = embedded.run(greedy)
    assert (failed.status, failed.attempts) == (Status.FAILED, 3)
    assert (failed.error or "").startswith("memory ran out (")
    assert_undisturbed(embedded, embedded.run(quiet))


def test_a_run_that_starves_its_workers_again_and_again_fails_and_says_so(deployment: Deployment) -> None:
    experiment = deployment.submit(SHORT, nudge=False)
    for _ in range(3):
        with deployment.database.transaction() as session:
            assert runs.claim(session, claimant("starved"), 3_600.0)
            recovery.requeue_oom_killed(session, "starved", "memory ran out", 3, 0.0)
    run: RunRecord = deployment.run(experiment)
    assert (run.status, run.attempts, run.error) == (Status.FAILED, 3, "memory ran out")


def test_a_worker_takes_no_run_that_needs_more_than_it_has(embedded: Deployment) -> None:
    with embedded.database.transaction() as session:
        made = experiments.create(
            session, NewExperiment(ExperimentSpec.model_validate(SHORT), memory_bytes=[1 << 30])
        ).record
    work(embedded.with_settings(memory_bytes=(1 << 30) - 1))
    assert (embedded.run(made.id).status, embedded.run(made.id).fence) == (Status.QUEUED, 0)
    work(embedded.with_settings(memory_bytes=1 << 30))
    assert_undisturbed(embedded, embedded.run(made.id))


def test_a_worker_has_what_its_machine_or_container_has_and_no_more(tmp_path: Path) -> None:
    machine, group, unlimited = tmp_path / "meminfo", tmp_path / "memory.max", tmp_path / "max"
    machine.write_text("MemTotal:       16384 kB\nMemFree:        1000 kB\n")
    group.write_text("1048576\n")
    unlimited.write_text("max\n")
    assert host_memory_bytes(machine, [unlimited, tmp_path / "none"]) == 16384 << 10
    assert host_memory_bytes(machine, [unlimited, group]) == 1 << 20
    assert memory_limit("cpu", 7) == 7
    assert 0 < memory_limit("cpu") < host_memory_bytes()


def _alone(document: Any) -> list[float | None]:
    simulation = Simulation(ExperimentSpec.model_validate(document), seed=0)
    return [simulation.advance().test_loss for _ in range(document["rounds"])]


# Runs of a worker that was killed because memory ran out go on with less, whichever of its processes died.

LONG_S = 3_600.0
"""A lease that no test waits for."""
REASON = "memory ran out, and the system ended the worker"


@contextmanager
def counted(deployment: Deployment, name: str) -> Iterator[Forked]:
    """A worker to which a file says how many processes the system has killed."""
    log = deployment.folder / f"worker-{name}.log"
    with forked(
        "tests.workers.worker_with_counted_kills",
        log=log,
        environment=deployment.environment,
        folder=deployment.folder,
    ) as process:
        yield process


def _whole(worker: Forked, pid: int) -> None:
    """All processes of the worker, as where a container is killed whole."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait(END_S)


def _child(worker: Forked, pid: int) -> None:
    """The process that plays the run, which its parent replaces."""
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@PRODUCTION_IN_CI
@pytest.mark.parametrize("kill", [pytest.param(_whole, marks=pytest.mark.nightly), _child])
def test_a_run_whose_worker_was_killed_for_memory_goes_on_with_less_before_its_lease_is_over(
    deployment: Deployment, kill: Callable[[Forked, int], None]
) -> None:
    patient, kills = deployment.with_settings(lease_seconds=LONG_S), deployment.folder / KILLS
    kills.write_text("3")
    with counted(patient, "first") as first:
        eventually(deployment.workers, timeout_s=END_S)
        experiment = patient.submit()
        run = patient.in_the_middle(experiment)
        # Held still, so that it cannot note the kill as one that it outlived.
        os.killpg(first.pid, signal.SIGSTOP)
        kills.write_text("4")
        kill(first, deployment.pid(run))
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGCONT)
        with counted(patient, "second"):
            eventually(lambda: deployment.run(experiment).shortages, timeout_s=END_S)
            send_wakeup("default", deployment.broker_url)
            (ended,) = deployment.ended(experiment)
    assert (ended.status, ended.shortages, ended.error, ended.provenance["memory_divisor"]) == (
        Status.SUCCEEDED,
        1,
        None,
        MEMORY_DIVISOR,
    )
    rows = [row.test_loss for row in deployment.rows(ended.id)]
    assert rows == pytest.approx([report.test_loss for report in undisturbed(ended.rounds)[0]], rel=1e-9)


@pytest.mark.nightly
def test_a_run_whose_worker_was_killed_otherwise_goes_on_as_before(embedded: Deployment) -> None:
    (embedded.folder / KILLS).write_text("3")
    with counted(embedded, "first") as first:
        eventually(embedded.workers, timeout_s=END_S)
        experiment = embedded.submit()
        embedded.in_the_middle(experiment)
        _whole(first, 0)
    with counted(embedded, "second"), embedded.running(count=0):
        (ended,) = embedded.ended(experiment)
    assert ended.shortages == 0
    assert_undisturbed(embedded, ended)


@pytest.fixture
def configured(tmp_path: Path, database_url: str) -> Settings:
    """Settings of workers whose home is the test's folder."""
    return Settings(_env_file=None, home=tmp_path, database_url=database_url)


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes the system has killed, which a test may change."""
    count = [7]
    monkeypatch.setattr(memory, "oom_kill_count", lambda: count[0])
    return count


def left_by(worker: str, home: Path, run_ids: Sequence[str]) -> Path:
    """The file of a worker that held these runs and was killed."""
    held = HeldRuns(home, worker)
    held.write(run_ids)
    assert held._file is not None
    held._file.close()
    return home / FOLDER / f"{worker}.json"


def test_only_the_runs_of_a_worker_that_died_while_the_system_killed_processes_are_requeued(
    database: Database, configured: Settings, kills: list[int]
) -> None:
    experiment = submit(database)
    run_id = claim(database).run_id
    file = left_by("worker-1", configured.home, [run_id])
    requeue_oom_killed(configured, backoff_s=0)
    assert run_of(database, experiment).status is Status.RUNNING, "killed otherwise"
    assert not file.exists()
    left_by("worker-1", configured.home, [run_id])
    kills[0] += 1
    requeue_oom_killed(configured, backoff_s=0)
    run = run_of(database, experiment)
    assert (run.status, run.shortages, run.attempts) == (Status.QUEUED, 1, 1)
    assert (run.error or "").startswith(REASON)
    requeue_oom_killed(configured, backoff_s=0)
    assert run_of(database, experiment).shortages == 1, "counted once"


def test_a_worker_that_lives_or_has_ended_of_its_own_accord_is_left_alone(
    database: Database, configured: Settings, kills: list[int]
) -> None:
    experiment = submit(database)
    run_id = claim(database).run_id
    held = HeldRuns(configured.home, "worker-1")
    held.write([run_id])
    kills[0] += 1
    requeue_oom_killed(configured, backoff_s=0)
    assert run_of(database, experiment).status is Status.RUNNING
    held.write([run_id])
    held.close()
    assert not list((configured.home / FOLDER).iterdir())


def test_the_count_of_another_machine_or_of_an_earlier_start_says_nothing(
    database: Database, configured: Settings, kills: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = submit(database)
    file = left_by("worker-1", configured.home, [claim(database).run_id])
    kills[0] += 1
    monkeypatch.setattr(memory, "_boot", lambda: "another")
    requeue_oom_killed(configured, backoff_s=0)
    assert file.exists(), "it may be another machine's, which sees to it"
    long_ago = time.time() - 2 * FORGET_S
    os.utime(file, (long_ago, long_ago))
    requeue_oom_killed(configured, backoff_s=0)
    assert not file.exists()
    assert run_of(database, experiment).status is Status.RUNNING


def test_a_shortage_is_counted_where_the_reconciler_took_the_run_before(
    database: Database, configured: Settings, kills: list[int]
) -> None:
    waiting, elsewhere, done = submit(database), submit(database), submit(database)
    held = [claim(database, lease_s=-1.0) for _ in range(3)]
    finish(database, next(one for one in held if one.experiment_id == done.id))
    left_by("worker-1", configured.home, [one.run_id for one in held])
    kills[0] += 1
    assert len(lose(database)) == 2
    claim(database, "worker-2")
    requeue_oom_killed(configured, backoff_s=0)
    runs = [run_of(database, experiment) for experiment in (waiting, elsewhere, done)]
    assert sorted((run.status, run.shortages) for run in runs) == [
        (Status.QUEUED, 1),
        (Status.RUNNING, 1),
        (Status.SUCCEEDED, 0),
    ]
    assert [(run.error or "").startswith(REASON) for run in runs] == [True, True, False]


def test_a_run_that_lost_its_last_worker_to_memory_says_so(
    database: Database, configured: Settings, kills: list[int]
) -> None:
    experiment = submit(database)
    for attempt in range(ATTEMPTS):
        left_by(
            f"worker-{attempt}", configured.home, [claim(database, f"worker-{attempt}", lease_s=-1.0).run_id]
        )
        lose(database)
    run = run_of(database, experiment)
    assert (run.status, "were lost" in (run.error or "")) == (Status.FAILED, True)
    kills[0] += 1
    requeue_oom_killed(configured, backoff_s=0)
    run = run_of(database, experiment)
    assert (run.status, run.shortages) == (Status.FAILED, ATTEMPTS)
    found = read(database, experiments.find, experiment.id)
    assert (run.error or "").startswith(REASON)
    assert found.error == run.error


def test_a_file_waits_for_a_database_that_is_away(
    database: Database, configured: Settings, kills: list[int], tmp_path: Path
) -> None:
    experiment = submit(database)
    file = left_by("worker-1", configured.home, [claim(database).run_id])
    kills[0] += 1
    requeue_oom_killed(configured.model_copy(update={"database_url": "postgresql://nobody@127.0.0.1:1/none"}))
    assert file.exists()
    requeue_oom_killed(configured, backoff_s=0)
    assert run_of(database, experiment).status is Status.QUEUED


def test_a_home_that_cannot_be_written_keeps_no_worker_from_its_work(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("no folder")
    with closing(HeldRuns(home, "worker-1")) as held:
        held.write(["run_1"])
