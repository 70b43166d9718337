"""Runs of a worker that was killed because memory ran out go on with less, whichever of its
processes died.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from fedcore.platform.out_of_memory import MEMORY_DIVISOR
from fedcore.platform.store import Database, Status, experiments
from fedcore.settings import Settings
from tests.platform.store.acts import ATTEMPTS, claim, finish, lose, read, submit, the_run
from tests.support.forks import Forked, forked
from tests.support.polling import eventually
from tests.workers.counted import KILLS
from tests.workers.site import END_S, PRODUCTION_IN_CI, Site, assert_undisturbed, undisturbed
from workers import memory
from workers.celery_app import send_wakeup
from workers.memory import FOLDER, FORGET_S, HeldRuns, requeue_oom_killed

LONG_S = 3_600.0
"""A lease that no test waits for."""
REASON = "memory ran out, and the system ended the worker"


@contextmanager
def counted(site: Site, name: str) -> Iterator[Forked]:
    """A worker to which a file says how many processes the system has killed."""
    log = site.folder / f"worker-{name}.log"
    with forked(
        "tests.workers.counted", log=log, environment=site.environment, folder=site.folder
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
    site: Site, kill: Callable[[Forked, int], None]
) -> None:
    patient, kills = site.with_settings(lease_seconds=LONG_S), site.folder / KILLS
    kills.write_text("3")
    with counted(patient, "first") as first:
        eventually(site.workers, timeout_s=END_S)
        experiment = patient.submit()
        run = patient.in_the_middle(experiment)
        # Held still, so that it cannot note the kill as one that it outlived.
        os.killpg(first.pid, signal.SIGSTOP)
        kills.write_text("4")
        kill(first, site.pid(run))
        with suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGCONT)
        with counted(patient, "second"):
            eventually(lambda: site.run(experiment).shortages, timeout_s=END_S)
            send_wakeup("default", site.broker_url)
            (ended,) = site.ended(experiment)
    assert (ended.status, ended.shortages, ended.error, ended.provenance["memory_divisor"]) == (
        Status.SUCCEEDED,
        1,
        None,
        MEMORY_DIVISOR,
    )
    rows = [row.test_loss for row in site.rows(ended.id)]
    assert rows == pytest.approx([report.test_loss for report in undisturbed(ended.rounds)[0]], rel=1e-9)


@pytest.mark.slow
def test_a_run_whose_worker_was_killed_otherwise_goes_on_as_before(embedded: Site) -> None:
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
    assert the_run(database, experiment).status is Status.RUNNING, "killed otherwise"
    assert not file.exists()
    left_by("worker-1", configured.home, [run_id])
    kills[0] += 1
    requeue_oom_killed(configured, backoff_s=0)
    run = the_run(database, experiment)
    assert (run.status, run.shortages, run.attempts) == (Status.QUEUED, 1, 1)
    assert (run.error or "").startswith(REASON)
    requeue_oom_killed(configured, backoff_s=0)
    assert the_run(database, experiment).shortages == 1, "counted once"


def test_a_worker_that_lives_or_has_ended_of_its_own_accord_is_left_alone(
    database: Database, configured: Settings, kills: list[int]
) -> None:
    experiment = submit(database)
    run_id = claim(database).run_id
    held = HeldRuns(configured.home, "worker-1")
    held.write([run_id])
    kills[0] += 1
    requeue_oom_killed(configured, backoff_s=0)
    assert the_run(database, experiment).status is Status.RUNNING
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
    assert the_run(database, experiment).status is Status.RUNNING


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
    runs = [the_run(database, experiment) for experiment in (waiting, elsewhere, done)]
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
    run = the_run(database, experiment)
    assert (run.status, "were lost" in (run.error or "")) == (Status.FAILED, True)
    kills[0] += 1
    requeue_oom_killed(configured, backoff_s=0)
    run = the_run(database, experiment)
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
    assert the_run(database, experiment).status is Status.QUEUED


def test_a_home_that_cannot_be_written_keeps_no_worker_from_its_work(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("no folder")
    with closing(HeldRuns(home, "worker-1")) as held:
        held.write(["run_1"])
