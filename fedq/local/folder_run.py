"""A run whose rounds, state and models go to its folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from fedcore.engine.choice import EngineChoice
from fedcore.errors import CheckpointError, FedcoreError
from fedcore.platform.artifacts import describe_run, model_files
from fedcore.platform.provenance import ENGINE_CHOICE, warning_entry
from fedcore.platform.status import Status
from fedcore.settings import settings
from fedcore.simulation.driver import Driver, Played
from fedcore.simulation.out_of_memory import (
    MEMORY_DIVISOR,
    is_out_of_memory,
    release_memory,
    user_message,
)
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation
from fedcore.spec import ExperimentSpec
from fedcore.spec.components import find_requirements
from fedcore.statistics.poor_runs import OBJECTIVES, MeasureEnds
from fedq.local.folder import MODEL, LocalRun, RunFolder

if TYPE_CHECKING:
    from fedq.local.stages import Setup, Stage

ATTEMPTS = 3
"""Maximum number of attempts of a stage, each with less memory than the one before."""
BUNDLE, THREADS = "bundle", "threads"
"""Keys of a run's provenance."""

log = logging.getLogger(__name__)


def compute(place: int, stage: Stage, setup: Setup, device: str) -> None:
    """Compute a stage of the run at position `place`, again with less memory where that ran out; errors are
    written to the run.
    """
    for attempt in range(ATTEMPTS):
        run = FolderRun(place, stage, setup, device, MEMORY_DIVISOR**attempt, last=attempt == ATTEMPTS - 1)
        with run.handling_errors():
            run.reload()
            for _ in Driver([run], settings().slice_seconds, setup.stopping.is_set).play():
                pass
        if not run.short:
            return
        del run
        # Only now is what the error referred to free.
        release_memory()


class FolderRun(Played):
    """A run during one stage."""

    simulation: Simulation
    _run: LocalRun

    def __init__(
        self, place: int, stage: Stage, setup: Setup, device: str, memory_divisor: int, *, last: bool
    ) -> None:
        """`last` if there is no further attempt with less memory."""
        super().__init__(stage.until)
        self.short = False
        """True if memory ran out, and there is a further attempt."""
        self._place, self._stage, self._setup, self._device = place, stage, setup, device
        self._memory_divisor, self._last = memory_divisor, last
        self._files = RunFolder(setup.folder, stage.key)
        self._spec = ExperimentSpec.model_validate(stage.spec)

    @property
    def begun(self) -> bool:
        return self.simulation.round > 0

    @contextmanager
    def handling_errors(self) -> Iterator[None]:
        """Write an error in the block to the run, unless memory ran out and there is a further attempt."""
        try:
            yield
        except Exception as error:
            self.released, short = True, is_out_of_memory(error)
            self.short = short and not self._last
            if not self.short:
                log.debug("run %s failed", self._stage.key, exc_info=True)
                run = self._files.read() or self._files.start({})
                reason = user_message(error) if short else _described(error)
                ended = {"status": Status.FAILED, "error": reason, "finished_at": datetime.now(UTC)}
                self._files.finish(run.model_copy(update=ended))

    def reload(self) -> None:
        """Restore the run after its last checkpoint, without the rounds behind it."""
        known = self._files.read()
        made_with = {} if known is None else known.provenance
        # A run keeps its threads and its engine, so that it ends in the same bits.
        torch.set_num_threads(made_with.get(THREADS, self._setup.threads))
        try:
            self.simulation = self._created(made_with)
            if (state := self._files.checkpoint()) is not None:
                self.simulation.restore(state)
        except CheckpointError as error:
            log.warning("run %s begins again: %s", self._stage.key, error)
            self.simulation = self._created(made_with)
        self._files.keep_rows(self.simulation.round)
        self._setup.rounds[self._place] = self.simulation.round
        going = {"status": Status.RUNNING, "error": None, "finished_at": None}
        self._run = (known or self._files.start({})).model_copy(
            update={**going, "provenance": self._provenance()}
        )
        self._files.write(self._run)

    def note(self, report: RoundReport) -> None:
        super().note(report)
        self._setup.rounds[self._place] = report.round

    def commit(self) -> bool:
        self._files.commit(self.reports, self.simulation.checkpoint())
        return super().commit()

    def complete(self) -> None:
        facts, finished, run = self.simulation.facts, self.simulation.finished, self._run
        files, digests = model_files(self.simulation, MODEL, run.id, self._stage.experiment_id)
        ended = {
            "status": Status.SUCCEEDED if finished else Status.AT_RUNG,
            "diverged_round": facts.round if facts.diverged else None,
            "stop_reason": facts.stopped,
            "finished_at": datetime.now(UTC) if finished else None,
            "provenance": self._provenance() | digests | self._warning(),
        }
        self._files.finish(run.model_copy(update=ended), files)

    def _created(self, made_with: dict[str, Any]) -> Simulation:
        return Simulation(
            self._spec,
            self._stage.key.seed,
            arm=self._stage.key.arm,
            device=self._device,
            data_dir=settings().datasets,
            models_allowed=settings().models_allowed,
            arms=self._stage.arms,
            choice=EngineChoice.of(made_with.get(ENGINE_CHOICE)),
            memory_divisor=self._memory_divisor,
        )

    def _warning(self) -> dict[str, Any]:
        """The entry of its provenance that warns of the run; empty where there is no reason to."""
        if self.simulation.facts.diverged:
            return {}
        ends: dict[str, MeasureEnds] = {}
        for report in self._files.reports():
            for name in (*OBJECTIVES, "test_accuracy"):
                if (value := report.value(name)) is not None:
                    ends[name] = MeasureEnds(ends[name].first if name in ends else value, value)
        return warning_entry(ends, self.simulation.facts.chance_accuracy)

    def _provenance(self) -> dict[str, Any]:
        (needed,) = find_requirements(self._spec)
        packages = json.loads(needed) if needed else ()
        found = describe_run(self.simulation.facts, self._device, packages)
        if self._spec.code is not None:
            found[BUNDLE] = {"digest": self._spec.code.digest, "confinement": "none"}
        return found


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, FedcoreError) else f"{type(error).__name__}: {error}"
