"""Stages of runs without a service, each computed by a process of its own: from the last checkpoint of
a run to its end, or to a rung of its search.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.errors import CheckpointError, FedcoreError
from fedcore.lazy import LazyModule, torch
from fedcore.platform.out_of_memory import MEMORY_DIVISOR, is_out_of_memory, release_memory, user_message
from fedcore.platform.provenance import ENGINE_CHOICE, warning_entry
from fedcore.platform.status import Status
from fedcore.platform.watchdog import end_with_parent
from fedcore.settings import settings
from fedcore.simulation.report import RoundReport
from fedcore.spec import ExperimentSpec
from fedcore.spec.components import find_requirements
from fedcore.spec.engines import ArmFacts
from fedcore.statistics.poor_runs import OBJECTIVES, MeasureEnds
from fedq.local.code import load_code
from fedq.local.folder import MODEL, LocalRun, RunFolder, RunKey

if TYPE_CHECKING:
    from fedcore.engine import choice
    from fedcore.platform import artifacts
    from fedcore.simulation import simulation as simulations
    from fedcore.simulation.simulation import Simulation
else:
    # Only the computing processes load PyTorch.
    artifacts = LazyModule("fedcore.platform.artifacts")
    choice = LazyModule("fedcore.engine.choice")
    simulations = LazyModule("fedcore.simulation.simulation")

ATTEMPTS = 3
"""Maximum number of attempts of a stage, each with less memory than the one before."""
SAVING_SHARE = 0.05
"""Largest share of the time, approximately, that commits take."""
BUNDLE, THREADS = "bundle", "threads"
"""Keys of a run's provenance."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """Rounds of a run, up to round `until`."""

    key: RunKey
    spec: dict[str, Any]
    """Specification of the arm."""
    arms: ArmFacts
    """Facts about all arms of the experiment."""
    until: int
    experiment_id: str


@dataclass(frozen=True)
class Setup:
    """Settings that the computing processes of an experiment share."""

    folder: Path
    code: Path | None
    """Folder with components of the user."""
    threads: int
    """Threads of the tensor library."""
    parent: int
    """Process id of the parent."""
    devices: SimpleQueue[str]
    """A device for each process."""
    rounds: SynchronizedArray[int]
    """Rounds done, by position of the run."""
    stopping: Event
    """Set when the processes are to end after the present round."""


class _Process:
    """State of a computing process."""

    setup: Setup
    device: str


def begin_process(setup: Setup) -> None:
    """Prepare this process; called once, before its first stage."""
    # Ctrl-C is the parent's to handle; without a parent nothing would hold the lock of the runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # of Slurm, to all processes of a job
    faulthandler.enable()  # Of a process that crashes, the pool tells nothing.
    end_with_parent()
    if os.getppid() != setup.parent:
        os._exit(1)
    if setup.code is not None:
        load_code(setup.code)
    _Process.setup, _Process.device = setup, setup.devices.get()


def compute_stage(place: int, stage: Stage) -> None:
    """Compute a stage of the run at position `place`; errors are written to the run."""
    if _Process.setup.stopping.is_set():
        return
    files, spec = RunFolder(_Process.setup.folder, stage.key), ExperimentSpec.model_validate(stage.spec)
    attempts, divisor = ATTEMPTS, 1
    while True:
        attempts -= 1
        try:
            _Stage(files, spec, stage, place).compute(divisor)
        except Exception as error:
            short = is_out_of_memory(error)
            if not (short and attempts):
                log.debug("run %s failed", stage.key, exc_info=True)
                _fail(files, user_message(error) if short else _described(error))
                return
        else:
            return
        # Only now is what the error referred to free.
        release_memory()
        divisor *= MEMORY_DIVISOR


class _Stage:
    def __init__(self, files: RunFolder, spec: ExperimentSpec, stage: Stage, place: int) -> None:
        self._files, self._spec, self._stage, self._place = files, spec, stage, place
        self._setup, self._device = _Process.setup, _Process.device
        self._saved_s = 0.0

    def compute(self, memory_divisor: int) -> None:
        """Play the rounds and store the models."""
        known = self._files.read()
        made_with = {} if known is None else known.provenance
        # A run keeps its threads and its engine, so that it ends in the same bits.
        torch.set_num_threads(made_with.get(THREADS, self._setup.threads))
        simulation = self._restored(made_with, memory_divisor)
        run = (known or self._files.start({})).model_copy(
            update={
                "status": Status.RUNNING,
                "error": None,
                "finished_at": None,
                "provenance": self._provenance(simulation),
            }
        )
        self._files.write(run)
        for reports in self._slices(simulation):
            began = time.monotonic()
            self._files.commit(reports, simulation.checkpoint())
            self._saved_s = time.monotonic() - began
        if simulation.finished or simulation.round >= self._stage.until:
            self._end(run, simulation)

    def _restored(self, made_with: dict[str, Any], memory_divisor: int) -> Simulation:
        """Return the simulation after its last checkpoint, without the rounds behind it."""
        try:
            simulation = self._simulation(made_with, memory_divisor)
            if (state := self._files.checkpoint()) is not None:
                simulation.restore(state)
        except CheckpointError as error:
            log.warning("run %s begins again: %s", self._stage.key, error)
            simulation = self._simulation(made_with, memory_divisor)
        self._files.keep_rows(simulation.round)
        self._setup.rounds[self._place] = simulation.round
        return simulation

    def _simulation(self, made_with: dict[str, Any], memory_divisor: int) -> Simulation:
        return simulations.Simulation(
            self._spec,
            self._stage.key.seed,
            arm=self._stage.key.arm,
            device=self._device,
            data_dir=settings().datasets,
            models_allowed=settings().models_allowed,
            arms=self._stage.arms,
            choice=choice.EngineChoice.of(made_with.get(ENGINE_CHOICE)),
            memory_divisor=memory_divisor,
        )

    def _slices(self, simulation: Simulation) -> Iterator[list[RoundReport]]:
        """Yield the rounds since the last commit whenever one is due."""
        reports: list[RoundReport] = []
        deadline = time.monotonic()
        while not (simulation.finished or simulation.round >= self._stage.until):
            reports.append(simulation.advance())
            self._setup.rounds[self._place] = simulation.round
            stopping = self._setup.stopping.is_set()
            if stopping or time.monotonic() >= deadline:
                yield reports
                reports = []
                pause_s = max(settings().slice_seconds, self._saved_s / SAVING_SHARE)
                deadline = time.monotonic() + pause_s
            if stopping:
                return
        if reports:
            yield reports

    def _end(self, run: LocalRun, simulation: Simulation) -> None:
        finished = simulation.finished
        files, digests = artifacts.model_files(simulation, MODEL, run.id, self._stage.experiment_id)
        self._files.finish(
            run.model_copy(
                update={
                    "status": Status.SUCCEEDED if finished else Status.AT_RUNG,
                    "diverged_round": simulation.round if simulation.diverged else None,
                    "stop_reason": simulation.stopped,
                    "finished_at": datetime.now(UTC) if finished else None,
                    "provenance": self._provenance(simulation) | digests | self._warning(simulation),
                }
            ),
            files,
        )

    def _warning(self, simulation: Simulation) -> dict[str, Any]:
        """Return the entry of its provenance that warns of the run; empty where there is no reason to."""
        if simulation.diverged:
            return {}
        ends: dict[str, MeasureEnds] = {}
        for report in self._files.reports():
            for name in (*OBJECTIVES, "test_accuracy"):
                if (value := report.value(name)) is not None:
                    ends[name] = MeasureEnds(ends[name].first if name in ends else value, value)
        return warning_entry(ends, simulation.chance_accuracy)

    def _provenance(self, simulation: Simulation) -> dict[str, Any]:
        (needed,) = find_requirements(self._spec)
        found = artifacts.describe_run(simulation, self._device, json.loads(needed) if needed else ())
        if self._spec.code is not None:
            found[BUNDLE] = {"digest": self._spec.code.digest, "confinement": "none"}
        return found


def _fail(files: RunFolder, error: str) -> None:
    run = files.read() or files.start({})
    ended = {"status": Status.FAILED, "error": error, "finished_at": datetime.now(UTC)}
    files.finish(run.model_copy(update=ended))


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}"
