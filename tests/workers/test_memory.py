"""A run for which memory runs out is played again with less.

If that is not enough it fails and says so, and others go on.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from fedcore import ExperimentSpec
from fedcore.engine import vectorised
from fedcore.platform.out_of_memory import MEMORY_DIVISOR
from fedcore.platform.store import Status, experiments, recovery, runs
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.tables import RunRecord
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from tests.documents import merged
from tests.workers.site import EXPERIMENT, Site, assert_undisturbed, undisturbed
from workers.memory import host_memory_bytes, memory_limit

SHORT = merged(EXPERIMENT, {"rounds": 6})
GREEDY = {
    "name": "greedy",
    "problem": {"dataset": {"kind": "quadratic", "generate": {"dim": 10_000, "clients": 8}}},
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.1, "steps": 1},
    "rounds": 2,
}
"""Its Hessians take 6.4 GB."""


def work(site: Site) -> None:
    """Play what waits, in this process."""
    with site.runner() as runner:
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
    embedded: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
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
    embedded: Site, monkeypatch: pytest.MonkeyPatch
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


def test_an_engine_that_promises_bits_keeps_them_after_a_shortage(embedded: Site) -> None:
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


def test_a_gang_in_which_memory_runs_out_costs_none_of_them_an_attempt(
    embedded: Site, monkeypatch: pytest.MonkeyPatch
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
    embedded: Site,
) -> None:
    quiet = embedded.submit(merged(SHORT, {"execution": {"priority": 1}}), nudge=False)
    greedy = embedded.submit(merged(GREEDY, {"execution": {"priority": 9}}), nudge=False)
    with at_most(2 << 30):
        work(embedded)
    failed = embedded.run(greedy)
    assert (failed.status, failed.attempts) == (Status.FAILED, 3)
    assert (failed.error or "").startswith("memory ran out (")
    assert_undisturbed(embedded, embedded.run(quiet))


def test_a_run_that_starves_its_workers_again_and_again_fails_and_says_so(site: Site) -> None:
    experiment = site.submit(SHORT, nudge=False)
    for _ in range(3):
        with site.database.transaction() as session:
            assert runs.claim(session, "starved", ["default"], 3_600.0)
            recovery.requeue_oom_killed(session, "starved", "memory ran out", 3, 0.0)
    run: RunRecord = site.run(experiment)
    assert (run.status, run.attempts, run.error) == (Status.FAILED, 3, "memory ran out")


def test_a_worker_takes_no_run_that_needs_more_than_it_has(embedded: Site) -> None:
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
