"""An experiment without a service: its runs on the cores and GPUs of this machine, and its results from
the files in its folder.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import nan
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedcore.errors import FedcoreError
from fedcore.lazy import torch
from fedcore.platform.provenance import DIVERGENCE, run_warning
from fedcore.platform.status import ENDED, Status
from fedcore.settings import settings
from fedcore.simulation.report import RoundReport, StopReason
from fedcore.simulation.searches import HalvingSearch, StudySearch, Trial
from fedcore.spec import ExperimentSpec
from fedcore.spec.engines import facts_about
from fedcore.spec.experiment import Arm
from fedcore.spec.search import Study
from fedcore.spec.space import find_conflict
from fedcore.spec.tuning import TriedSettings
from fedcore.statistics import summary
from fedcore.statistics.poor_runs import RunWarning
from fedcore.statistics.series import Series
from fedq.event_positions import Position
from fedq.local.folder import ExperimentFolder, LocalRun, RunKey
from fedq.local.stages import Setup, Stage, begin_process, compute_stage
from fedq.planning.draws import play_draws
from fedq.planning.work import count_work, name_kind
from fedq.results.confirmation import CONFIRMATION
from fedq.results.curves import Window
from fedq.results.selection import explain_selection
from fedq.results.summaries import (
    TOTALS,
    arms_of,
    best_arms_of,
    by_arm,
    data_sources,
    metric_names,
    references_among,
)
from fedq.schemas import Results

POLL_S = 0.2
POINTS = 2_000
"""Maximum number of points of a curve in the results."""
_PART = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class ProcessesError(FedcoreError):
    """A computing process was killed; the message says what to do."""


class ArrayPart(NamedTuple):
    """Part of a job array, from 1 to `of`."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> ArrayPart:
        """Read `3/16`; raises ValueError."""
        found = _PART.fullmatch(text)
        part = cls(int(found[1]), int(found[2])) if found else None
        if part is None or not 1 <= part.number <= part.of:
            raise ValueError(f"must be K/N with K from 1 to N, e.g. 3/16, not {text!r}")
        return part

    def places(self, runs: int) -> range:
        """Return the positions of its runs, every N-th: neighbours, which cost alike, are spread."""
        return range(self.number - 1, runs, self.of)


WHOLE = ArrayPart(1, 1)


class LocalProgress(NamedTuple):
    """Progress of the runs of this process."""

    rounds_done: int
    rounds_total: int
    ended: list[LocalRun]
    """Runs that have ended since the last call."""
    runs: int


@dataclass(frozen=True)
class _FolderRun:
    """A run with what its results need; `fedq.results.summaries.MeasuredRun`."""

    id: str
    arm: int
    arm_name: str
    settings: dict[str, Any]
    seed: int
    status: Status
    diverged_round: int | None
    divergence: str | None
    warning: RunWarning | None
    stop_reason: StopReason | None
    done: int
    seconds: float


@dataclass
class LocalExperiment:
    """Computes the runs of a folder, or a part of them; `run` may be called once."""

    folder: ExperimentFolder
    part: ArrayPart = WHOLE
    processes: int | None = None
    code: Path | None = None
    tell: Callable[[LocalProgress], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        # Without the proposals so far: a study that is resumed makes them again.
        self._spec = ExperimentSpec.model_validate(self.folder.experiment["specification"])
        self._arms = facts_about(self._spec)
        self._keys = self.folder.run_keys()
        self._places = {key: place for place, key in enumerate(self._keys)}
        self._mine = [self._keys[place] for place in self.part.places(len(self._keys))]
        self._ended: list[LocalRun] = []
        self._interrupted = False
        self._futures: dict[tuple[RunKey, int], Future[None]] = {}
        self._reported: dict[RunKey, int] = {}
        """Rounds that a study has been told of."""

    def run(self) -> None:
        """Compute what has not ended yet. KeyboardInterrupt ends it after the present rounds.

        Raises FolderError if another process computes one of the runs, and ProcessesError.
        """
        with self.folder.locked([self._places[key] for key in self._mine]), self._pool() as self._executor:
            for _ in self._reports():
                pass
            self._end_at_rungs()
            self._tell()

    @property
    def runs(self) -> list[LocalRun]:
        """The runs of this part that have started."""
        known = (self.folder.run(key).read() for key in self._mine)
        return [run for run in known if run is not None]

    @property
    def trials(self) -> list[TriedSettings]:
        """The trials of a study that was run to its end, in order."""
        return list(map(TriedSettings, self._study.search.proposed, self._study.values))

    def rates(self, since: datetime) -> list[tuple[str, float]]:
        """Return the kind of work of each run that has succeeded `since`, and its work per second."""
        arms, found = [arm.spec for arm in self.folder.spec.arms()], []
        work = list(map(count_work, arms, play_draws(arms)))
        for run in self.runs:
            if run.status is not Status.SUCCEEDED or run.finished_at is None or run.finished_at < since:
                continue
            spec, rows = arms[run.arm], self.folder.run(RunKey(run.arm, run.seed)).rows()
            seconds = sum(row["seconds"] for row in rows)
            if seconds > 0:
                found.append((name_kind(spec), work[run.arm] / spec.rounds * len(rows) / seconds))
        return found

    def _reports(self) -> Iterator[RoundReport]:
        match self._spec.search:
            case None:
                arms = {arm.index: arm for arm in self._spec.arms()}
                self._play([(arms[key.arm], key) for key in self._mine])
            case Study() as search:
                self._study = StudySearch(
                    self._spec, search, self._play_trials, lambda _: None, lambda _: None
                )
                yield from self._study.play()
            case search:
                yield from HalvingSearch(self._spec, search, self._play_next, lambda _: None).play()

    def _play(self, wanted: Sequence[tuple[Arm, RunKey]], until: int | None = None) -> None:
        futures = {
            self._submit(arm, key, arm.spec.rounds if until is None else until): key for arm, key in wanted
        }
        for future in self._completed(futures):
            self._note(futures[future])

    def _play_trials(self, runs: Sequence[tuple[Arm, int]], until: int) -> Iterator[RoundReport]:
        """Run trials of a study up to a round; what its proposals and decisions follow from has
        ended.
        """
        self.folder.propose(self._study.search.proposed)
        wanted = [(arm, RunKey(arm.index, seed)) for arm, seed in runs]
        self._play(wanted, until)
        for _, key in wanted:
            for report in self._reports_of(key):
                # In a folder that is resumed, the run may have gone farther.
                if report.diverged or self._reported.get(key, 0) < report.round <= until:
                    self._reported[key] = report.round
                    yield report

    def _reports_of(self, key: RunKey) -> Iterator[RoundReport]:
        """Yield the rounds of a run; of one that has failed, with an end that has no value."""
        files = self.folder.run(key)
        reports = files.reports()
        yield from reports
        run = files.read()
        if run is not None and run.status is Status.FAILED:
            yield RoundReport(key.arm, key.seed, len(reports), 0, 0, 0, 0.0, diverged=True)

    def _play_next(self, waiting: deque[Trial]) -> Iterator[tuple[Trial, RoundReport]]:
        """Play the first of the waiting trials.

        Every waiting trial will be played, so the others are begun meanwhile; the decisions are the
        same as in one process.
        """
        for trial in waiting:
            self._submit(trial.arm, RunKey(trial.arm.index, trial.seed), trial.until)
        trial = waiting.popleft()
        key = RunKey(trial.arm.index, trial.seed)
        for _ in self._completed({self._submit(trial.arm, key, trial.until): key}):
            pass
        self._note(key)
        played = trial.round
        for report in self._reports_of(key):
            # In a folder that is resumed, the run may have gone farther.
            if report.round <= trial.until and (report.round > played or report.diverged):
                yield trial, report

    def _submit(self, arm: Arm, key: RunKey, until: int) -> Future[None]:
        """Return the computation of a run up to a round, which begins once."""
        if (key, until) not in self._futures:
            files = self.folder.run(key)
            run = files.read()
            if run is not None and self._reached(run, rounds := len(files.rows()), until):
                done: Future[None] = Future()
                done.set_result(None)
                self._rounds[self._places[key]] = rounds
                self._futures[key, until] = done
            else:
                spec, experiment = arm.spec.model_dump(mode="json"), self.folder.experiment["id"]
                stage = Stage(key, spec, self._arms, until, experiment)
                self._futures[key, until] = self._executor.submit(compute_stage, self._places[key], stage)
        return self._futures[key, until]

    def _reached(self, run: LocalRun, rounds: int, until: int) -> bool:
        """Return True if a run has been there. One that failed is tried again, except in a search:
        others may have been promoted in its place.
        """
        if run.status is Status.FAILED:
            return self._spec.search is not None
        at_rung = run.status is Status.AT_RUNG and rounds == until
        return run.status is Status.SUCCEEDED or at_rung or rounds > until

    def _completed(self, futures: Mapping[Future[None], RunKey]) -> Iterator[Future[None]]:
        """Yield computations as they end; raises KeyboardInterrupt after a signal."""
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, POLL_S, FIRST_COMPLETED)
            self._tell()
            for future in done:
                try:
                    future.result()
                except BrokenProcessPool as error:
                    raise ProcessesError(
                        "a computing process has died. If its stack is printed above, compiled code"
                        " crashed there; else it was killed, perhaps because memory ran out, and the same"
                        " command continues, with --processes on fewer runs at a time"
                    ) from error
                yield future
            if self._interrupted:
                raise KeyboardInterrupt

    def _note(self, key: RunKey) -> None:
        run = self.folder.run(key).read()
        if run is not None and run.status in ENDED:
            self._ended.append(run)

    def _tell(self) -> None:
        rounds, runs = [self._rounds[self._places[key]] for key in self._mine], len(self._mine)
        self.tell(LocalProgress(sum(rounds), runs * self._spec.rounds, self._ended, runs))
        self._ended = []

    def _end_at_rungs(self) -> None:
        """Store the end of runs that a search has stopped, and of trials that could not run."""
        for key in self._mine if self._spec.search else ():
            files = self.folder.run(key)
            run = files.read()
            if run is not None and run.status is Status.AT_RUNG:
                stopped = {"stop_reason": StopReason.RUNG, "finished_at": datetime.now(UTC)}
                files.finish(run.model_copy(update={"status": Status.SUCCEEDED, **stopped}))
                self._note(key)
            elif run is None and isinstance(self._spec.search, Study):
                reason = find_conflict(self._spec, self._study.search.proposed[key.arm])
                failed = {"status": Status.FAILED, "error": reason, "finished_at": datetime.now(UTC)}
                files.finish(files.start({}).model_copy(update=failed))
                self._note(key)

    @contextmanager
    def _pool(self) -> Iterator[ProcessPoolExecutor]:
        """Start the processes, and end them; a signal ends them after their present rounds."""
        context = get_context("spawn")
        devices, cores = _devices(), _cores()
        count = min(
            self.processes or (cores if devices == ["cpu"] else len(devices)), max(len(self._mine), 1)
        )
        threads = max(1, cores // count)
        queue = context.SimpleQueue()
        for number in range(count):
            queue.put(devices[number % len(devices)])
        self._rounds = context.Array("q", len(self._keys), lock=False)
        self._stopping = context.Event()
        setup = Setup(self.folder.path, self.code, threads, os.getpid(), queue, self._rounds, self._stopping)
        # Libraries read it when they are loaded.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        handlers = {one: signal.signal(one, self._stop) for one in (signal.SIGINT, signal.SIGTERM)}
        executor = ProcessPoolExecutor(count, context, begin_process, (setup,))
        try:
            yield executor
        finally:
            self._stopping.set()
            executor.shutdown(wait=True, cancel_futures=True)
            for one, handler in handlers.items():
                signal.signal(one, handler)

    def _stop(self, *_: object) -> None:
        # No more here: the event is not to be touched in a signal handler.
        self._interrupted = True


def _cores() -> int:
    """Return the number of cores that this process may use; Slurm may say so without enforcing it."""
    allowed = len(os.sched_getaffinity(0))
    return min(allowed, int(os.environ.get("SLURM_CPUS_PER_TASK", allowed)))


def _devices() -> list[str]:
    """Return the devices of this machine that are to be used."""
    device = settings().device
    if device != "auto":
        return [device]
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:  # Without a driver there is nothing to ask PyTorch for, which takes two seconds to load.
        return ["cpu"]
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]


def results(folder: ExperimentFolder) -> Results:
    """Return the results so far, of all runs in the folder."""
    spec, metrics = folder.spec, metric_names()
    every = spec.arms()
    found = [_folder_run(folder, arm, seed) for arm in every for seed in spec.seeds]
    references = references_among([arm.spec.algorithm.kind for arm in every])
    runs = [run for run, _, _ in found]
    series = {run.id: _series(rows, {*metrics, *TOTALS}) for run, rows, _ in found if rows}
    statuses, arms = {run.status for run in runs}, list(by_arm(runs).values())
    status = (
        (Status.FAILED if Status.FAILED in statuses else Status.SUCCEEDED)
        if statuses <= ENDED
        else Status.RUNNING
    )
    return Results(
        experiment_id=folder.experiment["id"],
        name=folder.experiment["name"],
        status=status,
        position=str(Position.at(status, [(run.status, run.done) for run in runs], 0)),
        provenance=folder.experiment["provenance"],
        data_sources=data_sources(provenance for _, _, provenance in found),
        confidence=summary.CONFIDENCE,
        arms=arms_of(arms, series, metrics, Window(POINTS), references=references),
        best_arms=best_arms_of(
            arms, series, metrics, confirmed=CONFIRMATION in spec.tags, references=references
        ),
        selection=explain_selection([spec.model_dump(mode="json")], series.values()),
    )


def _folder_run(
    folder: ExperimentFolder, arm: Arm, seed: int
) -> tuple[_FolderRun, list[dict[str, Any]], Mapping[str, Any]]:
    """A run with its rows and its provenance."""
    files = folder.run(RunKey(arm.index, seed))
    run = files.read()
    rows = files.rows(whole=run is not None and run.status is Status.SUCCEEDED)
    measured = _FolderRun(
        id=str(files.key),
        arm=arm.index,
        arm_name=arm.name,
        settings=arm.settings,
        seed=seed,
        status=Status.QUEUED if run is None else run.status,
        diverged_round=None if run is None else run.diverged_round,
        divergence=None if run is None else run.provenance.get(DIVERGENCE),
        warning=None if run is None else run_warning(run.status, run.diverged_round, run.provenance),
        stop_reason=None if run is None else run.stop_reason,
        done=len(rows),
        seconds=sum(row["seconds"] for row in rows),
    )
    return measured, rows, {} if run is None else run.provenance


def _series(rows: Sequence[Mapping[str, Any]], metrics: set[str]) -> Series:
    flat = [{**row["extra"], **row} for row in rows]
    return Series(
        {name: np.array([_number(row.get(name)) for row in flat], np.float64) for name in sorted(metrics)}
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else nan
