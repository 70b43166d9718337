"""Run an experiment without a service, in one process and without a database. In a search, arms run
up to a rung, are judged there, and continue or stop; in a study, they are proposed from the results
of earlier ones.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from fedcore.errors import SpecificationError
from fedcore.settings import settings
from fedcore.simulation import study
from fedcore.simulation.halving import Decision, HalvingSchedule, RungResult, RungTable, Verdict
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import Simulation, advance_batch, batch_key
from fedcore.spec import ExperimentSpec
from fedcore.spec.experiment import Arm
from fedcore.spec.search import Halving, Study
from fedcore.spec.space import conflict


@dataclass
class Trial:
    """A run between two stages. Changes in place."""

    arm: Arm
    seed: int
    until: int
    """The round it may play up to."""
    round: int = 0
    ended: bool = False
    value: float = nan
    """The metric at the last rung; of a run that ended before the next, its last value."""

    def note(self, report: RoundReport, metric: str) -> None:
        """A round was played."""
        self.ended = report.diverged or report.stopped is not None or report.round >= self.arm.spec.rounds
        value = report.value(metric)
        finite = value is not None and isfinite(value)
        if finite or report.round == self.until:
            self.value = value if value is not None else nan
        if report.diverged:
            self.value = nan
        self.round = report.round


PlayNext = Callable[[deque[Trial]], Iterator[tuple[Trial, RoundReport]]]
"""Takes one or more trials from the front of a queue, and plays each up to its limit."""


class HalvingSearch:
    """Runs the arms of a specification with a search; `play` may be called once.

    If several arms wait, promoted ones come first, the farthest before all (Li et al. 2020,
    Algorithm 2, get_job). The decisions depend on the order in which `play_next` takes the trials,
    and on nothing else.
    """

    def __init__(
        self, spec: ExperimentSpec, search: Halving, play_next: PlayNext, decided: Callable[[Decision], None]
    ) -> None:
        """`decided` is called with each decision."""
        self._metric, self._decided, arms = search.metric, decided, spec.arms()
        self._play_next = play_next
        ladder = HalvingSchedule.of(search, len(arms), spec.rounds)
        self._ends, self._board = (*ladder.rungs, spec.rounds), RungTable(ladder)
        self._arms = [[Trial(arm, seed, self._ends[0]) for seed in spec.seeds] for arm in arms]
        self._stretch = [0] * len(arms)
        """By arm, the stretch of rounds it is in: up to rung k, or after the last one."""
        self._waiting = deque(trial for arm in self._arms for trial in arm)

    def play(self) -> Iterator[RoundReport]:
        """Play every round of every arm, up to where it is stopped."""
        while self._waiting:
            # Arms in the order in which the last of their runs arrived.
            ready: dict[int, None] = {}
            for trial, report in self._play_next(self._waiting):
                trial.note(report, self._metric)
                yield report
                if trial.ended or trial.round == trial.until:
                    ready.pop(trial.arm.index, None)
                    ready[trial.arm.index] = None
            self._judge(ready)

    def _judge(self, arms: Iterable[int]) -> None:
        """Submit arms that have come to a rung, and carry out the decisions."""
        moved = deque(arms)
        while moved:
            index = moved.popleft()
            arm, rung = self._arms[index], self._stretch[index]
            if rung + 1 < len(self._ends) and all(one.ended or one.round == self._ends[rung] for one in arm):
                decisions = self._board.submit(RungResult(index, rung, fmean(one.value for one in arm)))
                moved.extend(decision.arm for decision in decisions if decision.verdict is Verdict.PROMOTED)
                for decision in decisions:
                    self._apply(decision)

    def _apply(self, decision: Decision) -> None:
        self._decided(decision)
        if decision.verdict is Verdict.PROMOTED:
            self._stretch[decision.arm] += 1
            going = [trial for trial in self._arms[decision.arm] if not trial.ended]
            for trial in going:
                trial.until = self._ends[decision.rung + 1]
            self._waiting.extendleft(reversed(going))


class TrialBatches:
    """Plays trials in this process, in batches where that is faster."""

    def __init__(self, folder: Path) -> None:
        """Keep the state of waiting runs in `folder`."""
        self._folder = folder

    def play_next(self, waiting: deque[Trial]) -> Iterator[tuple[Trial, RoundReport]]:
        """Play the first of the waiting trials, and those behind it that can be trained with it."""
        batch = [self._next(waiting)]
        first, simulation = batch[0]
        while waiting and simulation.benefits_from_batching and len(batch) < settings().gang_size:
            if batch_key(waiting[0].arm.spec) != batch_key(first.arm.spec):
                break
            batch.append(self._next(waiting))
        while playing := [
            (trial, simulation)
            for trial, simulation in batch
            if not simulation.finished and simulation.round < trial.until
        ]:
            reports = advance_batch([simulation for _, simulation in playing])
            yield from zip((trial for trial, _ in playing), reports, strict=True)
        for trial, simulation in batch:
            if not simulation.finished:
                self._file(trial).write_bytes(simulation.checkpoint())

    def _next(self, waiting: deque[Trial]) -> tuple[Trial, Simulation]:
        trial = waiting.popleft()
        simulation = Simulation(trial.arm.spec, trial.seed, arm=trial.arm.index)
        if trial.round:
            simulation.restore(self._file(trial).read_bytes())
        return trial, simulation

    def _file(self, trial: Trial) -> Path:
        return self._folder / f"{trial.arm.index}-{trial.seed}"


@dataclass
class _Objective:
    """The value of a run of a trial. Changes in place."""

    search: Study
    rounds: int
    last: float = nan
    best: float = nan

    def note(self, report: RoundReport) -> None:
        """A round was played."""
        value = report.value(self.search.metric)
        if value is not None and isfinite(value):
            self.last = value
            self.best = study.best_so_far([self.best, value], maximise=self.search.maximise)[-1]
        elif report.round == self.rounds:
            self.last = nan
        if report.diverged:
            self.last = self.best = nan

    @property
    def value(self) -> float:
        """That of the round which the study judges by; NaN if there is none."""
        return self.best if self.search.round == "best" else self.last


PlayArms = Callable[[Sequence[Arm], Sequence[int]], Iterator[RoundReport]]
"""Runs arms with each of the seeds, to their ends."""


class StudySearch:
    """Runs the trials of a specification with a study; `play` may be called once.

    A trial whose settings are not valid together has no rounds and no value.
    """

    def __init__(
        self, spec: ExperimentSpec, search: Study, play_arms: PlayArms, proposed: Callable[[Arm], None]
    ) -> None:
        """`proposed` is called with each trial before it runs."""
        self._spec, self._search, self._proposed = spec, search, proposed
        self._play_arms = play_arms
        self._values: list[float] = []

    @property
    def search(self) -> Study:
        """The study with the settings of all trials so far."""
        return self._search

    def play(self) -> Iterator[RoundReport]:
        """Play every round of every trial."""
        self._propose(study.first_trials(self._search))
        while len(self._values) < len(self._search.proposed):
            arms = self._spec.model_copy(update={"search": self._search}).arms()
            yield from self._run(arms[len(self._values) : len(self._search.proposed)])
            self._propose(study.next_trials(self._search))

    def _propose(self, count: int) -> None:
        if count:
            settings = study.propose(self._search, self._values, count)
            proposed = (*self._search.proposed, *settings)
            self._search = self._search.model_copy(update={"proposed": proposed})

    def _run(self, arms: Sequence[Arm]) -> Iterator[RoundReport]:
        """Run these trials to their ends, and note their values."""
        runs = {
            (arm.index, seed): _Objective(self._search, self._spec.rounds)
            for arm in arms
            for seed in self._spec.seeds
        }
        valid = [arm for arm in arms if conflict(self._spec, arm.settings) is None]
        for arm in valid:
            self._proposed(arm)
        for report in self._play_arms(valid, self._spec.seeds):
            runs[report.arm, report.seed].note(report)
            yield report
        self._values += [fmean(runs[arm.index, seed].value for seed in self._spec.seeds) for arm in arms]


def run(
    spec: ExperimentSpec,
    resume: Path | None = None,
    decided: Callable[[Decision], None] | None = None,
    proposed: Callable[[Arm], None] | None = None,
) -> Iterator[RoundReport]:
    """Run every arm with every seed, under a search as far as it is promoted; yields one report per
    round.

    Runs come one after another, or in batches where that is faster: then the reports of a round
    follow one another. `resume` is a checkpoint to continue from, for a specification of a single
    run. `decided` is called with each decision of a search that stops arms, `proposed` with each trial
    of a study, whose settings are known then. Raises SpecificationError, DataUnavailableError, or
    CheckpointError if the checkpoint belongs to another run.
    """
    arms = spec.arms()
    if resume is not None and len(arms) * len(spec.seeds) != 1:
        raise SpecificationError("/seeds", "a checkpoint resumes a single run; give one seed and no sweep")
    if isinstance(spec.search, Study):
        yield from StudySearch(spec, spec.search, _play, proposed or (lambda _: None)).play()
        return
    if spec.search is not None:
        with TemporaryDirectory() as folder:
            play_next = TrialBatches(Path(folder)).play_next
            yield from HalvingSearch(spec, spec.search, play_next, decided or (lambda _: None)).play()
        return
    yield from _play(arms, spec.seeds, resume)


def _play(arms: Sequence[Arm], seeds: Sequence[int], resume: Path | None = None) -> Iterator[RoundReport]:
    """Run every arm with every seed; `resume` is a checkpoint of the only run."""
    for _, group in groupby(arms, lambda arm: batch_key(arm.spec)):
        waiting = [(arm, seed) for arm in group for seed in seeds]
        while waiting:
            members = _run_batch(waiting)
            if resume is not None:
                members[0].restore(resume.read_bytes())
            while members := [member for member in members if not member.finished]:
                yield from advance_batch(members)


def _run_batch(waiting: list[tuple[Arm, int]]) -> list[Simulation]:
    """Take the next runs to be trained together from those that wait."""
    members = [_next(waiting)]
    while waiting and members[0].benefits_from_batching and len(members) < settings().gang_size:
        members.append(_next(waiting))
    return members


def _next(waiting: list[tuple[Arm, int]]) -> Simulation:
    arm, seed = waiting.pop(0)
    return Simulation(arm.spec, seed, arm=arm.index)
