"""Runs in shards, on several workers that are disturbed: rows and model are always the same."""

import os
import signal

import pytest

from fedcore.platform.store import Status
from fedcore.platform.store.tables import RunRecord
from tests.documents import merged
from tests.support.polling import eventually
from tests.workers.site import END_S, EXPERIMENT, PRODUCTION_IN_CI, Site, assert_undisturbed

pytestmark = pytest.mark.slow
SHARDS = 4
DOCUMENT = merged(EXPERIMENT, {"name": "in shards", "execution": {"shards": SHARDS}})


def with_members(site: Site, experiment: str, count: int) -> RunRecord:
    """Wait until a run in its middle is trained by `count` members besides its worker."""
    run = site.in_the_middle(experiment)
    eventually(lambda: len(site.members()) >= count and joined(site) >= count, timeout_s=END_S)
    return run


def joined(site: Site) -> int:
    texts = [log.read_text() for log in site.folder.glob("worker-*.log")]
    return sum(text.count("has joined the group") for text in texts)


@PRODUCTION_IN_CI
@pytest.mark.parametrize("count", [*(pytest.param(count, marks=pytest.mark.nightly) for count in (1, 3)), 2])
def test_the_number_of_workers_changes_no_bit(site: Site, count: int) -> None:
    with site.running(count=count):
        experiment = site.submit(DOCUMENT)
        with_members(site, experiment, count - 1)
        (run,) = site.ended(experiment)
        assert_undisturbed(site, run, SHARDS)
        eventually(lambda: not site.members(), timeout_s=END_S)


@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
def test_a_member_that_is_lost_changes_no_bit(embedded: Site, signum: signal.Signals) -> None:
    with embedded.running(count=2):
        experiment = embedded.submit(DOCUMENT)
        before = with_members(embedded, experiment, 1)
        (pid,) = embedded.members().values()
        os.kill(pid, signum)
        (run,) = embedded.ended(experiment)
        assert_undisturbed(embedded, run, SHARDS)
    assert run.fence == before.fence


def test_a_run_whose_worker_is_killed_goes_on_with_another(embedded: Site) -> None:
    with embedded.running(count=2):
        experiment = embedded.submit(DOCUMENT)
        before = with_members(embedded, experiment, 1)
        embedded.send(before, signal.SIGKILL)
        (run,) = embedded.ended(experiment)
        assert_undisturbed(embedded, run, SHARDS)
    assert run.fence > before.fence


@pytest.mark.nightly
def test_a_queued_run_comes_before_a_membership(embedded: Site) -> None:
    with embedded.running(count=2):
        first = embedded.submit(DOCUMENT)
        with_members(embedded, first, 1)
        second = embedded.submit(merged(DOCUMENT, {"name": "second", "execution": {"shards": None}}))
        eventually(lambda: embedded.run(second).status is not Status.QUEUED, timeout_s=END_S)
        assert embedded.run(first).status is Status.RUNNING
        (run,) = embedded.ended(first)
        assert_undisturbed(embedded, run, SHARDS)
