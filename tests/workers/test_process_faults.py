"""A run whose processes are killed or frozen has the rows and the model of an undisturbed run."""

import os
import signal
import time

import psutil
import pytest

from fedcore.platform.store import Status
from tests.support.brokers import connect
from tests.support.clocks import settable_clock
from tests.support.polling import eventually
from tests.workers.conftest import LEASE_S
from tests.workers.deployment import END_S, PRODUCTION_IN_CI, Deployment, assert_undisturbed
from workers.celery_app import send_wakeup

pytestmark = pytest.mark.slow

HOUR_S = 3_600.0


@PRODUCTION_IN_CI
def test_a_run_through_the_workers_is_the_run_of_the_library(deployment: Deployment) -> None:
    with deployment.running():
        (run,) = deployment.ended(deployment.submit())
    assert_undisturbed(deployment, run)


@PRODUCTION_IN_CI
def test_a_killed_worker_process_is_replaced_and_its_run_goes_on(deployment: Deployment) -> None:
    with deployment.running():
        experiment = deployment.submit()
        before = deployment.in_the_middle(experiment)
        deployment.send(before, signal.SIGKILL)
        eventually(lambda: deployment.run(experiment).fence > before.fence, timeout_s=30)
        (run,) = deployment.ended(experiment)
    assert_undisturbed(deployment, run)


def test_a_run_moves_to_another_worker_when_its_own_is_killed_parent_and_child(embedded: Deployment) -> None:
    with embedded.running(count=2) as workers:
        experiment = embedded.submit()
        before = embedded.in_the_middle(experiment)
        for worker in workers[:1]:
            worker.kill()
        embedded.send(before, signal.SIGKILL)
        (run,) = embedded.ended(experiment)
    assert_undisturbed(embedded, run)


@pytest.mark.nightly
def test_a_worker_killed_again_and_again_still_gets_there(embedded: Deployment) -> None:
    with embedded.running():
        experiment = embedded.submit()
        for milestone in (20, 60, 100):
            embedded.send(embedded.in_the_middle(experiment, milestone), signal.SIGKILL)
        (run,) = embedded.ended(experiment)
    assert_undisturbed(embedded, run)
    assert run.fence >= 4


@pytest.mark.nightly
def test_a_clock_that_is_set_while_a_run_is_under_way_costs_nothing(production: Deployment) -> None:
    """The database's; and whoever dies then is missed no later than otherwise."""
    with settable_clock(production.database) as set_clock, production.running():
        experiment = production.submit()
        before = production.in_the_middle(experiment)
        for clock_s in (HOUR_S, 0.0, -HOUR_S):
            set_clock(clock_s)
            # Two rounds a second: for twice the length of a lease.
            after = production.run(experiment).done + round(4 * LEASE_S)
            eventually(lambda: production.run(experiment).done >= after, timeout_s=END_S)  # noqa: B023
        assert production.run(experiment).fence == before.fence
        production.send(before, signal.SIGKILL)
        eventually(lambda: production.run(experiment).fence > before.fence, timeout_s=END_S)
        (run,) = production.ended(experiment)
    assert_undisturbed(production, run)
    assert run.fence == before.fence + 1


@PRODUCTION_IN_CI
def test_a_worker_that_was_frozen_past_its_lease_is_refused(deployment: Deployment) -> None:
    with deployment.running(count=2) as workers:
        experiment = deployment.submit()
        # Parent and child, or the one would see to the other's end; outside of a transaction, or
        # others could not write.
        frozen = deployment.freeze(experiment)
        (own,) = (worker for worker in workers if worker.pid == psutil.Process(deployment.pid(frozen)).ppid())
        own.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: deployment.run(experiment).done > frozen.done, timeout_s=END_S)
        finally:
            deployment.send(frozen, signal.SIGCONT)
            own.send_signal(signal.SIGCONT)
        eventually(lambda: deployment.logged("was taken from", "is no longer held"), timeout_s=END_S)
        (run,) = deployment.ended(experiment)
    assert_undisturbed(deployment, run)
    assert run.worker != frozen.worker


def test_a_process_that_has_stopped_is_killed_and_another_takes_its_place(embedded: Deployment) -> None:
    with embedded.running(reconciler=False):
        ((stopped, pid),) = embedded.workers().items()
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: embedded.workers().keys() - {stopped}, timeout_s=END_S)
        assert not psutil.pid_exists(pid)


@pytest.mark.nightly
def test_nudges_that_come_many_times_repeat_nothing(embedded: Deployment) -> None:
    with embedded.running(count=2):
        experiment = embedded.submit()
        for _ in range(50):
            send_wakeup("default", embedded.broker_url)
        (run,) = embedded.ended(experiment)
    assert_undisturbed(embedded, run)
    assert run.fence == 1


def test_a_run_whose_nudge_was_lost_with_the_broker_is_found_by_the_reconciler(embedded: Deployment) -> None:
    experiment = embedded.submit()
    with connect(embedded.broker_url) as broker:
        broker.flushdb()
    with embedded.running():
        (run,) = embedded.ended(experiment)
    assert_undisturbed(embedded, run)


def test_a_nudge_without_a_broker_is_given_up_soon_and_without_an_error(tmp_path: object) -> None:
    began = time.monotonic()
    assert send_wakeup("default", f"redis+socket://{tmp_path}/nobody.sock") is False
    assert time.monotonic() - began < 5


@PRODUCTION_IN_CI
@pytest.mark.parametrize("whole", [False, True], ids=["parent", "every process"])
def test_a_worker_asked_to_end_commits_its_round_and_hands_the_run_back(
    deployment: Deployment, whole: bool
) -> None:
    with deployment.running() as (worker,):
        experiment = deployment.submit()
        before = deployment.in_the_middle(experiment)
        if whole:
            # As Slurm does, and a service manager that knows no better.
            deployment.send(before, signal.SIGTERM)
        worker.terminate()
        assert worker.wait(30) == 0
        handed_back = deployment.run(experiment)
        assert (handed_back.status, handed_back.attempts) == (Status.QUEUED, 0)
        assert len(deployment.rows(handed_back.id)) == handed_back.done
        assert deployment.workers() == {}
    with deployment.running():
        (run,) = deployment.ended(experiment)
    assert_undisturbed(deployment, run)


@pytest.mark.nightly
def test_a_worker_asked_to_end_whose_round_does_not_end_leaves_it_after_its_grace(
    embedded: Deployment,
) -> None:
    # The lease is long: it is not for having stopped that the process is killed.
    deployment = embedded.with_settings(grace_seconds=0.5, lease_seconds=600)
    with deployment.running(reconciler=False) as (worker,):
        (pid,) = deployment.workers().values()
        os.kill(pid, signal.SIGSTOP)
        worker.terminate()
        assert worker.wait(END_S) == 1
        eventually(lambda: not psutil.pid_exists(pid), timeout_s=END_S)
