"""Searches without a service: arms run up to a rung, are judged there, and continue or stop; in a study,
they are proposed from the results of earlier ones. A function that is passed in plays the rounds.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean

from fedcore.simulation import pruning, study
from fedcore.simulation.halving import Decision, HalvingSchedule, RungResult, RungTable, Verdict
from fedcore.simulation.report import RoundReport
from fedcore.spec import ExperimentSpec
from fedcore.spec.experiment import Arm
from fedcore.spec.search import Batch, Halving, Study
from fedcore.spec.space import find_conflict


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
        """Stretch of rounds that each arm is in: up to rung k, or after the last one."""
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


@dataclass
class _RunOfTrial:
    """The values of a run of a trial, by metric. Changes in place."""

    search: Study
    last: list[float]
    best: float = nan
    """Best value of the first metric so far."""
    ended: bool = False

    def note(self, report: RoundReport, until: int) -> None:
        """A round of the stage that ends at round `until` was played."""
        for place, judged in enumerate(self.search.objectives):
            value = report.value(judged.metric)
            if value is not None and isfinite(value):
                self.last[place] = value
            elif report.round == until:
                self.last[place] = nan
        value = report.value(self.search.metric)
        if value is not None:
            self.best = study.best_so_far([self.best, value], maximise=self.search.maximise)[-1]
        if report.diverged:
            self.last, self.best = [nan for _ in self.last], nan
        self.ended = report.diverged or report.stopped is not None

    @property
    def values(self) -> Sequence[float]:
        """Values by metric, of the round which the study judges by; NaN where there is none."""
        return [self.best] if self.search.round == "best" else self.last


PlayTrials = Callable[[Sequence[tuple[Arm, int]], int], Iterator[RoundReport]]
"""Plays runs, arms and seeds, from where they are up to a round."""


class StudySearch:
    """Runs the trials of a specification with a study; `play` may be called once.

    A trial whose settings are not valid together has no rounds and no value.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        search: Study,
        play_trials: PlayTrials,
        proposed: Callable[[Arm], None],
        decided: Callable[[Decision], None],
    ) -> None:
        """`proposed` is called with each trial before it runs, `decided` with each decision of its
        pruner.
        """
        self._spec, self._search, self._play_trials = spec, search, play_trials
        self._proposed, self._decided = proposed, decided
        self._ends = pruning.rungs(search, spec.rounds)
        self._values: dict[tuple[int, int], float] = {}
        """Value of the first metric by trial and rung."""
        self._results: dict[int, study.TrialResult] = {}

    @property
    def search(self) -> Study:
        """The study with the settings of all trials so far."""
        return self._search

    @property
    def values(self) -> list[float]:
        """Value of `metric` of each trial that has ended, in order; NaN where there is none."""
        return [self._results[trial].values[0] for trial in range(len(self._results))]

    def play(self) -> Iterator[RoundReport]:
        """Play every round of every trial, up to where it is stopped."""
        self._propose(study.first_trials(self._search, self._spec.rounds))
        while (first := len(self._results)) < len(self._search.proposed):
            batch = pruning.batch_of(self._search, self._spec.rounds, first)
            arms = self._spec.model_copy(update={"search": self._search}).arms()
            yield from self._run(arms[batch.first : batch.last], batch)
            if batch.last == len(self._search.proposed):
                self._propose(study.next_trials(self._search, self._spec.rounds))

    def _propose(self, count: int) -> None:
        if count:
            results = [self._results[trial] for trial in range(len(self._results))]
            settings = study.propose(self._search, results, count, self._spec.rounds)
            proposed = (*self._search.proposed, *settings)
            self._search = self._search.model_copy(update={"proposed": proposed})

    def _run(self, arms: Sequence[Arm], batch: Batch) -> Iterator[RoundReport]:
        """Run these trials to their ends, or up to where they are stopped, and note their values."""
        runs = {
            arm.index: {
                seed: _RunOfTrial(self._search, [nan for _ in self._search.objectives])
                for seed in self._spec.seeds
            }
            for arm in arms
        }
        valid = [arm for arm in arms if find_conflict(self._spec, arm.settings) is None]
        for arm in valid:
            self._proposed(arm)
        going = set(runs)
        for rung, until in list(enumerate(self._ends))[batch.rung :]:
            playing = [
                (arm, seed)
                for arm in valid
                if arm.index in going
                for seed in self._spec.seeds
                if not runs[arm.index][seed].ended
            ]
            for report in self._play_trials(playing, until):
                runs[report.arm][report.seed].note(report, until)
                yield report
            going = set(self._judged({trial: runs[trial] for trial in sorted(going)}, batch, rung))

    def _judged(
        self, runs: Mapping[int, Mapping[int, _RunOfTrial]], batch: Batch, rung: int
    ) -> Iterator[int]:
        """Note the values of trials that have come to a rung; yields the trials that go on."""
        last = rung == len(self._ends) - 1
        for trial, by_seed in runs.items():
            columns = zip(*(one.values for one in by_seed.values()), strict=True)
            means = tuple(fmean(column) for column in columns)
            self._values[trial, rung] = means[0]
            self._results[trial] = study.TrialResult(means, None if last else self._ends[rung])
        if last:
            return
        for decision in pruning.decide(self._search, self._spec.rounds, batch, rung, self._values):
            self._decided(decision)
            if decision.verdict is Verdict.PROMOTED:
                yield decision.arm
