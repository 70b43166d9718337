"""Lines and resource use of runs, as workers collect and store them."""

import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from sqlalchemy import text, update

from fedcore.platform.status import LogLevel
from fedcore.platform.store import Status, telemetry
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.tables import ResourceRecord, RunLogRecord, RunRecord
from fedcore.platform.store.telemetry import ResourceUse
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from tests.builders.claims import claim, lose
from tests.builders.specifications import merged
from tests.platform.store.test_telemetry import line
from tests.support.polling import eventually
from tests.workers.deployment import END_S, EXPERIMENT, Deployment, assert_undisturbed
from workers.telemetry import PENDING_LINES, GpuUse, ResourceMeter, ResourceReading, RunTelemetry

SHORT = merged(EXPERIMENT, {"rounds": 4})
BUSY = """
import sys
sys.stdin.readline()
block = bytearray(100_000_000)
sum(range(5_000_000))
print("done", flush=True)
sys.stdin.read()
"""
"""A process that computes for a while once it is asked to, and then waits until its input is closed."""
MADE_UP = ResourceReading(at=10.0, cpu_seconds=3.0, memory_bytes=500, gpu=None)


class MadeUpMeter(ResourceMeter):
    """Gives readings in turn; None where there is none."""

    def __init__(self, *readings: ResourceReading | None) -> None:
        super().__init__("cpu")
        self._readings = iter(readings)

    def read(self, *, with_children: bool) -> ResourceReading | None:
        return next(self._readings)


@pytest.fixture(autouse=True)
def information(caplog: pytest.LogCaptureFixture) -> None:
    """Have the log take lines of level `info`, as in a worker."""
    caplog.set_level(logging.INFO)


def lines(deployment: Deployment, run_id: str) -> Sequence[RunLogRecord]:
    with deployment.database.reading() as session:
        return telemetry.log_lines(session, run_id)


def samples(deployment: Deployment, run_id: str) -> Sequence[ResourceRecord]:
    with deployment.database.reading() as session:
        return telemetry.resource_samples(session, run_id)


def work(deployment: Deployment, experiment: str) -> str:
    """Carry an experiment out; the id of its only run."""
    with deployment.runner() as runner:
        runner.work()
    return deployment.run(experiment).id


def test_a_short_run_has_its_lines_and_a_sample(deployment: Deployment) -> None:
    run_id = work(deployment, deployment.submit(SHORT, nudge=False))
    claimed, loaded, finished = lines(deployment, run_id)
    assert (claimed.event, finished.event) == (
        "run claimed, 0 of 4 rounds are done",
        "run finished after round 4",
    )
    assert loaded.event.startswith("run loaded in ")
    assert loaded.event.endswith(": engine vectorised on cpu")
    assert (claimed.level, claimed.worker) == (LogLevel.INFO, "in this process")
    assert claimed.fields == {"fence": 1, "logger": "workers.runner"}
    sample, *_ = samples(deployment, run_id)
    assert sample.worker == "in this process"
    assert 0 < sample.seconds < END_S
    assert 0 < sample.cpu_cores < 64
    assert sample.memory_bytes > 50e6
    assert (sample.gpu_utilisation, sample.gpu_memory_bytes) == (None, None)


def test_lines_and_samples_are_there_while_a_round_lasts(embedded: Deployment) -> None:
    deployment, seen = embedded.with_settings(lease_seconds=0.3), list[str]()

    class Waiting(Simulation):
        def advance(self) -> RoundReport:
            (run,) = deployment.runs(experiment)
            eventually(lambda: len(samples(deployment, run.id)) > 1, timeout_s=END_S)
            seen.extend(line.event for line in lines(deployment, run.id))
            return super().advance()

    experiment = deployment.submit(merged(EXPERIMENT, {"rounds": 1}), nudge=False)
    with deployment.runner(create=Waiting) as runner:
        runner.work()
    assert deployment.run(experiment).status is Status.SUCCEEDED
    assert seen[0] == "run claimed, 0 of 1 rounds are done"


def test_each_run_of_a_batch_has_its_own_lines(embedded: Deployment) -> None:
    experiment = embedded.submit(merged(SHORT, {"seeds": [0, 1, 2]}), nudge=False)
    with embedded.runner() as runner:
        runner.work()
    for run in embedded.runs(experiment):
        events = [found.event for found in lines(embedded, run.id)]
        assert [event.partition(" in ")[0] for event in events] == [
            "run claimed, 0 of 4 rounds are done",
            "run loaded",
            "run finished after round 4",
        ]
        assert samples(embedded, run.id)


def test_a_run_that_fails_says_why_with_a_traceback(embedded: Deployment) -> None:
    class Broken(Simulation):
        def advance(self) -> RoundReport:
            raise ZeroDivisionError("by password=hunter2")

    experiment = embedded.submit(SHORT, nudge=False)
    with embedded.runner(create=Broken) as runner:
        runner.work()
    run = embedded.run(experiment)
    *_, last = lines(embedded, run.id)
    assert (run.status, last.level, last.event) == (Status.FAILED, LogLevel.ERROR, f"run {run.id} failed")
    assert last.fields["exception"].endswith("ZeroDivisionError: by password=***")
    assert samples(embedded, run.id)


def test_a_run_whose_data_are_missing_says_which(embedded: Deployment) -> None:
    document = merged(EXPERIMENT, {"problem": {"dataset": {"kind": "mnist"}, "partition": {"kind": "iid"}}})
    document["problem"]["partition"]["clients"] = 10
    experiment = embedded.submit(document, nudge=False)
    with embedded.with_settings(data_dir=embedded.folder / "nothing").runner() as runner:
        runner.work()
    run = embedded.run(experiment)
    warning = next(found for found in lines(embedded, run.id) if found.level is LogLevel.WARNING)
    assert "FEDQ_DATA_DIR" in warning.event


def test_a_worker_that_has_lost_its_run_stores_no_line(embedded: Deployment) -> None:
    deployment = embedded.with_settings(lease_seconds=3600)

    class Losing(Simulation):
        def advance(self) -> RoundReport:
            with deployment.database.transaction() as session:
                session.execute(update(RunRecord).values(lease_until=sql_now(-1.0)))
            lose(deployment.database)
            claim(deployment.database, "another")
            return super().advance()

    experiment = deployment.submit(SHORT, nudge=False)
    with deployment.runner(create=Losing) as runner:
        runner.work()
    run = deployment.run(experiment)
    assert (run.worker, run.status) == ("another", Status.RUNNING)
    expected = "worker in this process was lost after round 0: its lease has expired; the run is queued"
    assert [found.event for found in lines(deployment, run.id)] == [expected]
    assert list(samples(deployment, run.id)) == []


@pytest.mark.parametrize("table", ["run_log", "run_resources"])
def test_a_run_goes_on_where_its_telemetry_cannot_be_stored(deployment: Deployment, table: str) -> None:
    with deployment.database.transaction() as session:
        session.execute(text(f"ALTER TABLE {table} RENAME TO elsewhere"))
    experiment = deployment.submit(nudge=False)
    with deployment.with_settings(lease_seconds=0.3).runner() as runner:
        runner.work()
    assert_undisturbed(deployment, deployment.run(experiment))


def test_a_sample_covers_the_time_since_the_one_before() -> None:
    gpu = GpuUse(0.25, 2_000)
    readings = (
        MADE_UP,
        ResourceReading(at=12.0, cpu_seconds=6.0, memory_bytes=700, gpu=gpu),
        ResourceReading(at=16.0, cpu_seconds=5.5, memory_bytes=600, gpu=GpuUse(None, 3_000)),
    )
    measured = RunTelemetry(MadeUpMeter(*readings), with_children=False)
    measured.measure()
    measured.measure()
    with measured.unstored() as (_, (first, second)):
        assert first == ResourceUse(first.time, 2.0, 1.5, 700, 0.25, 2_000)
        # The time of a process that has ended is not always known.
        assert second == ResourceUse(second.time, 4.0, 0.0, 600, None, 3_000)
        assert first.time <= second.time


def test_values_that_cannot_be_measured_are_missing() -> None:
    later = ResourceReading(at=12.0, cpu_seconds=6.0, memory_bytes=700, gpu=None)
    measured = RunTelemetry(MadeUpMeter(None, MADE_UP, None, MADE_UP, later), with_children=False)
    for _ in range(4):
        measured.measure()
    with measured.unstored() as (_, found):
        assert [(sample.seconds, sample.cpu_cores) for sample in found] == [(2.0, 1.5)]


def test_lines_a_transaction_has_not_stored_wait_and_are_left_out_of_the_next() -> None:
    measured = RunTelemetry(ResourceMeter("cpu"), with_children=False)
    measured.lines.append(line(1))
    measured.measure()
    with suppress(ConnectionError), measured.unstored() as (found, used):
        assert (len(found), len(used)) == (1, 1)
        measured.lines.append(line(2))
        raise ConnectionError
    with measured.unstored() as (found, used):
        assert (found, used) == ([], [])
    with measured.unstored() as (found, used):
        assert [one.event for one in found] == ["event 1", "event 2"]
        assert len(used) == 1
    with measured.unstored() as (found, used):
        assert (found, used) == ([], [])


def test_newest_of_many_lines_wait() -> None:
    measured = RunTelemetry(ResourceMeter("cpu"), with_children=False)
    measured.lines.extend(line(number) for number in range(PENDING_LINES))
    with suppress(ConnectionError), measured.unstored():
        measured.lines.extend(line(number) for number in range(PENDING_LINES, PENDING_LINES + 10))
        raise ConnectionError
    with measured.unstored():
        pass
    with measured.unstored() as (found, _):
        assert [one.fields["number"] for one in found] == list(range(10, PENDING_LINES + 10))


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[str]]:
    """A child that waits for a line of input."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield child


def test_children_count_where_a_bundle_computes_in_them(busy: subprocess.Popen[str]) -> None:
    meter = ResourceMeter("cpu")
    before = meter.read(with_children=True)
    assert busy.stdin is not None
    assert busy.stdout is not None
    busy.stdin.write("\n")
    busy.stdin.flush()
    assert busy.stdout.readline() == "done\n"
    during, alone = meter.read(with_children=True), meter.read(with_children=False)
    busy.communicate()
    after = meter.read(with_children=True)
    assert before is not None
    assert during is not None
    assert alone is not None
    assert after is not None
    # Its time stays known after its end.
    assert after.cpu_seconds >= during.cpu_seconds >= before.cpu_seconds + 0.02
    assert alone.memory_bytes > 20e6
    assert during.memory_bytes > after.memory_bytes + 50e6


def test_a_gpu_is_read_where_runs_are_trained_on_one() -> None:
    asked: list[str] = []

    def read_gpu(device: str) -> GpuUse:
        asked.append(device)
        return GpuUse(0.5, 1_000)

    reading = ResourceMeter("cuda:1", read_gpu).read(with_children=False)
    assert reading is not None
    assert (reading.gpu, asked) == (GpuUse(0.5, 1_000), ["cuda:1"])
    assert ResourceMeter("cpu", read_gpu).read(with_children=False) is not None
    assert asked == ["cuda:1"]


def test_a_gpu_that_cannot_be_read_is_no_fault_of_the_run() -> None:
    def read_gpu(_: str) -> GpuUse:
        raise RuntimeError("the driver does not answer")

    reading = ResourceMeter("cuda", read_gpu).read(with_children=False)
    assert reading is not None
    assert (reading.gpu, reading.memory_bytes > 0) == (None, True)
