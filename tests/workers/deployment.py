"""A deployment that tests run whole, and the undisturbed run that they compare its runs with."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from sqlalchemy import select
from torch import Tensor

from fedcore import ExperimentSpec
from fedcore.platform.provenance import best_model_key
from fedcore.platform.storage import Storage, open_storage
from fedcore.platform.store import ENDED, Database, Status, curves, runs, workers
from fedcore.platform.store.blocks import StoredRound
from fedcore.platform.store.tables import MemberRecord, RunRecord
from fedcore.settings import Settings
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from tests.builders.experiments import submit
from tests.builders.specifications import SYNTHETIC, merged
from tests.support.forks import Forked, forked
from tests.support.freezing import Locks, wait_until_still
from tests.support.polling import eventually
from tests.workers.throttled_worker import FULL_SPEED, SHORT_SLICES
from workers.celery_app import send_wakeup
from workers.claimed_run import Pacing
from workers.runner import Runner, build_runner

EXPERIMENT = merged(
    SYNTHETIC,
    {
        "name": "rounds to be disturbed in",
        # Thousands of samples to evaluate.
        "problem": {"dataset": {"seed": 0}},
        "rounds": 120,
        "algorithm": {"kind": "scaffold"},
        "local": {"epochs": None, "steps": 2},
        "execution": {"engine": "vectorised"},
    },
)
"""Half a second of work; its clients and its server remember from round to round."""
MIDDLE = 20
END_S = 120.0
PRODUCTION_IN_CI = pytest.mark.parametrize(
    "deployment",
    [
        pytest.param(("sqlite", "valkey"), id="embedded", marks=pytest.mark.nightly),
        pytest.param(("postgresql", "redis"), id="production"),
    ],
    indirect=True,
)
"""Marks tests of `deployment` whose variant on SQLite is one of the exhaustive tests."""


@dataclass(frozen=True)
class Deployment:
    """Where runs are carried out in a test."""

    database: Database
    broker_url: str
    environment: Mapping[str, str]
    folder: Path

    def with_settings(self, **values: Any) -> "Deployment":
        """Return this deployment with processes under other settings: `slice_seconds=1` is
        FEDQ_SLICE_SECONDS.
        """
        return replace(
            self,
            environment={
                **self.environment,
                **{f"FEDQ_{name.upper()}": str(value) for name, value in values.items()},
            },
        )

    @property
    def storage(self) -> Storage:
        """Where its checkpoints and models are."""
        return open_storage(self.environment["FEDQ_STORAGE_URL"])

    def submit(self, document: Mapping[str, Any] = EXPERIMENT, nudge: bool = True) -> str:
        """Store an experiment and nudge a worker, as the API does; returns its id."""
        experiment = submit(self.database, document)
        if nudge:
            send_wakeup("default", self.broker_url)
        return experiment.id

    @contextmanager
    def running(self, *, count: int = 1, reconciler: bool = True) -> Iterator[list[Forked]]:
        """`count` worker processes that have reported for duty, throttled (see
        `tests.workers.throttled_worker`), and a reconciler.
        """
        self.let_go(MIDDLE)
        with ExitStack() as stack:
            if reconciler:
                stack.enter_context(self._process("workers.reconciler", "reconciler.log"))
            present = len(self.workers())
            started = [
                stack.enter_context(self._process("tests.workers.throttled_worker", f"worker-{index}.log"))
                for index in range(count)
            ]
            eventually(lambda: len(self.workers()) >= present + count, timeout_s=END_S)
            yield started

    def workers(self) -> dict[str, int]:
        """The processes that play rounds, by worker id."""
        with self.database.reading() as session:
            return {worker.id: worker.pid for worker in workers.alive(session, 3_600.0)}

    def members(self) -> dict[str, int]:
        """The processes that train shards of a run of another worker, by worker id."""
        with self.database.reading() as session:
            seated = set(session.scalars(select(MemberRecord.worker)))
        return {worker: pid for worker, pid in self.workers().items() if worker in seated}

    def runs(self, experiment_id: str) -> Sequence[RunRecord]:
        """The runs of an experiment."""
        with self.database.reading() as session:
            return runs.of_experiment(session, experiment_id)

    def run(self, experiment_id: str) -> RunRecord:
        """The only run of an experiment."""
        (only,) = self.runs(experiment_id)
        return only

    def rows(self, run_id: str) -> Sequence[StoredRound]:
        """All rows of a run."""
        with self.database.reading() as session:
            return curves.after(session, run_id, limit=10_000)

    def in_the_middle(self, experiment_id: str, after: int = MIDDLE) -> RunRecord:
        """Wait until some rounds are committed, and then some more are under way; returns the
        run.
        """
        self.let_go(after)
        eventually(lambda: self.run(experiment_id).done >= after, timeout_s=END_S)
        run = self.run(experiment_id)
        assert run.status is Status.RUNNING, f"the run was over before it could be disturbed: {run.status}"
        return run

    def ended(self, experiment_id: str, timeout_s: float = END_S) -> Sequence[RunRecord]:
        """Let the workers play at full speed, and wait for the end of all runs of an experiment."""
        self.let_go(1_000_000)

        def look() -> Sequence[RunRecord]:
            found = self.runs(experiment_id)
            return found if all(run.status in ENDED for run in found) else []

        return eventually(look, timeout_s=timeout_s)

    def let_go(self, rounds: int) -> None:
        """Let the workers play so many rounds at full speed."""
        partial = self.folder / f"{FULL_SPEED}.partial"
        partial.write_text(str(rounds))
        partial.replace(self.folder / FULL_SPEED)

    def send(self, run: RunRecord, signum: signal.Signals) -> None:
        """Send a signal to the process that plays `run`."""
        os.kill(self.pid(run), signum)

    def pid(self, run: RunRecord) -> int:
        """The process that plays `run`."""
        assert run.worker is not None
        return self.workers()[run.worker]

    def freeze(self, experiment_id: str) -> RunRecord:
        """Stop the process that plays the only run, but not in the middle of a write to it.

        Returns the run.
        """
        with closing(Locks(self.database.url)) as locks:
            while True:
                run = self.in_the_middle(experiment_id)
                self.send(run, signal.SIGSTOP)
                wait_until_still(self.pid(run))
                if not locks.writing(run.id):
                    return run
                self.send(run, signal.SIGCONT)

    def logged(self, *phrases: str) -> bool:
        """True if a worker process has written one of these to its log."""
        texts = [log.read_text() for log in self.folder.glob("worker-*.log")]
        return any(phrase in text for phrase in phrases for text in texts)

    @contextmanager
    def runner(
        self,
        stopping: Callable[[], bool] = lambda: False,
        *,
        database: Database | None = None,
        create: Callable[..., Simulation] = Simulation,
        pacing: Pacing = SHORT_SLICES,
    ) -> Iterator[Runner]:
        """A worker's runner in this process."""
        # On PostgreSQL the connections of a worker have a limit of their own.
        if database is None and self.database.url.get_backend_name() == "sqlite":
            database = self.database
        prefix = "FEDQ_"
        given: dict[str, Any] = {
            name.removeprefix(prefix).lower(): value
            for name, value in self.environment.items()
            if name.startswith(prefix)
        }
        opened = build_runner(
            Settings(_env_file=None, **given),
            "in this process",
            stopping,
            database=database,
            create=create,
            pacing=pacing,
        )
        try:
            yield opened
        finally:
            opened.close()

    @contextmanager
    def _process(self, module: str, log: str) -> Iterator[Forked]:
        with forked(
            module, log=self.folder / log, environment=self.environment, folder=self.folder
        ) as process:
            yield process


@cache
def _in_one_go(rounds: int, shards: int | None) -> tuple[list[RoundReport], Simulation]:
    document = merged(EXPERIMENT, {"rounds": rounds, "execution": {"shards": shards}})
    simulation = Simulation(ExperimentSpec.model_validate(document), seed=0)
    reports = []
    while not simulation.finished:
        reports.append(simulation.advance())
    return reports, simulation


def undisturbed(
    rounds: int = EXPERIMENT["rounds"], shards: int | None = None
) -> tuple[list[RoundReport], dict[str, Tensor]]:
    """Reports and final model of EXPERIMENT, in shards or whole, when it is executed in one go."""
    reports, simulation = _in_one_go(rounds, shards)
    return reports, simulation.model()


def assert_undisturbed(deployment: Deployment, run: RunRecord, shards: int | None = None) -> None:
    """The run succeeded, each of its rows is there once, and rows, final and best model are those of a run
    that nothing disturbed, to the bit.
    """
    assert (run.status, run.error) == (Status.SUCCEEDED, None)
    reports, model = undisturbed(run.rounds, shards)
    assert [_measures(row) for row in deployment.rows(run.id)] == [_measures(report) for report in reports]
    simulation = _in_one_go(run.rounds, shards)[1]
    assert run.model is not None
    best = best_model_key(run.model, run.provenance)
    assert best is not None
    for key, expected in ((run.model, model), (best, simulation.best_model())):
        with deployment.storage.open(key) as file:
            stored = load(file.read())
        assert stored.keys() == expected.keys()
        assert all(torch.equal(stored[name], expected[name]) for name in expected)
    assert simulation.facts.best is not None
    assert simulation.facts.best.document().items() <= run.provenance["best_model"].items()


def _measures(row: StoredRound | RoundReport) -> tuple[Any, ...]:
    return (
        row.round,
        row.train_loss,
        row.test_loss,
        row.test_accuracy,
        row.local_steps,
        row.bytes_up,
        row.bytes_down,
    )
