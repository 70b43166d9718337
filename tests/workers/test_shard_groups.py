"""Runs in shards, on several workers that are disturbed: rows and model are always the same."""

import os
import signal
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from fedcore import ExperimentSpec, Simulation
from fedcore.platform.store import Status
from fedcore.platform.store.tables import MemberRecord, RunRecord
from fedcore.simulation.report import RoundReport
from tests.documents import merged
from tests.support.polling import eventually
from tests.workers.site import END_S, EXPERIMENT, PRODUCTION_IN_CI, Site

pytestmark = pytest.mark.slow
DOCUMENT = merged(EXPERIMENT, {"name": "in shards", "execution": {"shards": 4}})


@cache
def alone() -> tuple[list[RoundReport], dict[str, Tensor]]:
    """Reports and final model of DOCUMENT in one process."""
    simulation = Simulation(ExperimentSpec.model_validate(DOCUMENT), seed=0)
    reports = []
    while not simulation.finished:
        reports.append(simulation.advance())
    return reports, simulation.model()


def assert_alone(site: Site, run: RunRecord) -> None:
    """Rows and model are those of one process, to the bit."""
    assert (run.status, run.error) == (Status.SUCCEEDED, None)
    reports, model = alone()
    assert [measures(row) for row in site.rows(run.id)] == [measures(report) for report in reports]
    assert run.model is not None
    with site.storage.open(run.model) as file:
        stored = load(file.read())
    assert all(torch.equal(stored[name], value) for name, value in model.items())


def measures(row: Any) -> tuple[Any, ...]:
    return row.round, row.train_loss, row.test_accuracy, row.local_steps, row.bytes_up, row.bytes_down


def members(site: Site) -> dict[str, int]:
    """The processes that train shards for another worker, by worker id."""
    with site.database.reading() as session:
        seated = [member.worker for member in session.query(MemberRecord)]
    return {worker: pid for worker, pid in site.workers().items() if worker in seated}


def with_members(site: Site, experiment: str, count: int) -> RunRecord:
    """Wait until a run in its middle is trained by `count` members besides its worker."""
    run = site.in_the_middle(experiment)
    eventually(lambda: len(members(site)) >= count and joined(site) >= count, timeout_s=END_S)
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
        assert_alone(site, run)
        eventually(lambda: not members(site), timeout_s=END_S)


@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
def test_a_member_that_is_lost_changes_no_bit(embedded: Site, signum: signal.Signals) -> None:
    with embedded.running(count=2):
        experiment = embedded.submit(DOCUMENT)
        before = with_members(embedded, experiment, 1)
        (pid,) = members(embedded).values()
        os.kill(pid, signum)
        (run,) = embedded.ended(experiment)
        assert_alone(embedded, run)
    assert run.fence == before.fence


def test_a_run_whose_worker_is_killed_goes_on_with_another(embedded: Site) -> None:
    with embedded.running(count=2):
        experiment = embedded.submit(DOCUMENT)
        before = with_members(embedded, experiment, 1)
        embedded.send(before, signal.SIGKILL)
        (run,) = embedded.ended(experiment)
        assert_alone(embedded, run)
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
        assert_alone(embedded, run)
