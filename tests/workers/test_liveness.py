"""A worker that messages no longer reach ends.

One that they reach goes on, whatever waits in its queues.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from fedcore.platform.access import Scope
from fedcore.platform.store import Database, Status, experiments, keys
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.tables import ExperimentRecord
from tests.builders.experiments import run_of
from tests.builders.specifications import specification
from tests.builders.transactions import write
from tests.support.brokers import connect
from tests.support.forks import Forked, forked
from tests.support.polling import eventually
from tests.workers.deployment import END_S, EXPERIMENT, Deployment
from tests.workers.worker_with_frequent_checks import CHECKS, DEAF
from workers.celery_app import queue_name
from workers.liveness import MOST_UNANSWERED, WakeupMonitor


class Ear:
    """A monitor, with counts of what it does."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.sent = self.ends = 0
        self.monitor = WakeupMonitor(self._send, self._end)

    def check(self, times: int) -> None:
        for _ in range(times):
            self.monitor.check()

    def _send(self) -> bool:
        self.sent += 1
        return self.takes

    def _end(self) -> None:
        self.ends += 1


def test_a_worker_that_receives_none_of_its_own_messages_ends() -> None:
    ear = Ear()
    ear.check(MOST_UNANSWERED)
    assert (ear.sent, ear.ends) == (MOST_UNANSWERED, 0)
    ear.check(1)
    assert (ear.sent, ear.ends) == (MOST_UNANSWERED, 1)


def test_a_worker_that_receives_one_in_time_goes_on() -> None:
    ear = Ear()
    for _ in range(3):
        ear.check(MOST_UNANSWERED)
        with ear.monitor.handling():
            pass
    assert ear.ends == 0


def test_a_broker_that_takes_no_message_says_nothing_of_the_worker() -> None:
    ear = Ear(takes=False)
    ear.check(10 * MOST_UNANSWERED)
    assert ear.ends == 0


def test_a_worker_at_work_sends_itself_nothing() -> None:
    ear = Ear()
    with ear.monitor.handling():
        ear.check(10 * MOST_UNANSWERED)
    assert (ear.sent, ear.ends) == (0, 0)


@contextmanager
def impatient(deployment: Deployment, name: str, *arguments: str) -> Iterator[Forked]:
    """A worker that checks often."""
    log = deployment.folder / f"worker-{name}.log"
    with forked(
        "tests.workers.worker_with_frequent_checks",
        *arguments,
        log=log,
        environment=deployment.environment,
        folder=deployment.folder,
    ) as process:
        yield process


@pytest.mark.slow
def test_a_worker_that_has_gone_deaf_ends_with_its_child_and_another_carries_the_run_out(
    embedded: Deployment,
) -> None:
    with impatient(embedded, "deaf", DEAF) as process:
        eventually(embedded.workers, timeout_s=END_S)
        experiment = embedded.submit()
        assert process.wait(END_S) == 1
        assert embedded.run(experiment).status is Status.QUEUED
    assert embedded.logged("no message reaches this worker")
    with embedded.running(reconciler=False):
        (run,) = embedded.ended(experiment)
        assert run.status is Status.SUCCEEDED


@pytest.mark.slow
def test_a_run_whose_wakeup_was_lost_is_found_by_an_idle_worker_without_a_reconciler(
    embedded: Deployment,
) -> None:
    with impatient(embedded, "alone"):
        eventually(embedded.workers, timeout_s=END_S)
        experiment = embedded.submit(nudge=False)
        (run,) = embedded.ended(experiment)
        assert run.status is Status.SUCCEEDED


@contextmanager
def others_listening(deployment: Deployment, count: int = 30) -> Iterator[None]:
    """Idle workers of the same queue, which take its messages and find no run."""
    ended, queue = Event(), queue_name("default")

    def listen() -> None:
        with connect(deployment.broker_url) as client:
            client.connection_pool.connection_kwargs["socket_timeout"] = None
            while not ended.is_set():
                # For as long as it takes: of those who wait the one is served who has waited
                # longest.
                client.brpop([queue])

    with ThreadPoolExecutor(count) as listeners, connect(deployment.broker_url) as client:
        listening = [listeners.submit(listen) for _ in range(count)]
        try:
            yield
        finally:
            ended.set()
            client.lpush(queue, *["end"] * count)
    for one in listening:
        one.result()


def _waiting_for_quotas(database: Database) -> list[ExperimentRecord]:
    """Experiments that wait, one for each quota that makes runs wait."""
    made: list[ExperimentRecord] = []
    for quota in ("max_running_runs", "max_compute_seconds"):
        key, _ = write(database, keys.create, owner="ann", scope=Scope.SUBMIT)
        made.append(
            write(
                database,
                experiments.create,
                NewExperiment(specification(EXPERIMENT), owner="ann", key_id=key.id),
            ).record
        )
        write(database, keys.edit, key.id, {quota: 0})
    return made


@pytest.mark.nightly
def test_an_idle_worker_goes_on_while_runs_wait_for_quotas_and_others_take_the_messages_of_its_queue(
    embedded: Deployment,
) -> None:
    waiting = _waiting_for_quotas(embedded.database)
    with others_listening(embedded), impatient(embedded, "one-of-many") as process:
        (pid,) = eventually(embedded.workers, timeout_s=END_S).values()
        checks = embedded.folder / CHECKS.format(pid=pid)
        eventually(
            lambda: process.poll() is not None or _size(checks) >= 3 * MOST_UNANSWERED, timeout_s=END_S
        )
        assert process.poll() is None
    assert {run_of(embedded.database, experiment).status for experiment in waiting} == {Status.QUEUED}


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
