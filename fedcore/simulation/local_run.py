"""Run an experiment without a service, in one process and without a database."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from fedcore.block import MAX_ROUNDS
from fedcore.errors import SpecificationError
from fedcore.simulation.driver import Driver, Played
from fedcore.simulation.halving import Decision
from fedcore.simulation.report import RoundReport
from fedcore.simulation.searches import HalvingSearch, StudySearch, Trial
from fedcore.simulation.simulation import MAX_BATCH_RUNS, Simulation, batch_key
from fedcore.spec import ExperimentSpec
from fedcore.spec.engines import facts_about
from fedcore.spec.experiment import Arm
from fedcore.spec.search import Study

Create = Callable[[Arm, int], Simulation]


class TrialRun(Played):
    """A run whose rounds go to the loop of the caller, and its state at the end of a trial to a file."""

    def __init__(self, trial: Trial, create: Create, state: Path) -> None:
        """`create` makes the run of an arm with a seed, which goes on from what is in the file `state`."""
        super().__init__(trial.until)
        self.trial, self._create, self._state = trial, create, state
        self._load()
        self._seen = self.simulation.round

    def note(self, report: RoundReport) -> None:
        """The caller sees the round."""
        self._seen = report.round

    def complete(self) -> None:
        """Keep the state of a run that waits."""
        if not self.simulation.finished:
            self._state.write_bytes(self.simulation.checkpoint())

    def reload(self) -> None:
        """Play again what the caller has seen."""
        self._load()
        while self.simulation.round < self._seen:
            self.simulation.advance()

    def _load(self) -> None:
        self.simulation = self._create(self.trial.arm, self.trial.seed)
        if self._state.exists():
            self.simulation.restore(self._state.read_bytes())


class TrialBatches:
    """Plays trials in this process, in batches where that is faster."""

    def __init__(self, folder: Path, create: Create, max_runs: int = MAX_BATCH_RUNS) -> None:
        """Keep the state of waiting runs in `folder`. `create` makes the run of an arm with a seed, and a
        batch has at most `max_runs`.
        """
        self._folder, self._create, self._max_runs = folder, create, max_runs

    def play_next(self, waiting: deque[Trial]) -> Iterator[tuple[Trial, RoundReport]]:
        """Play the first of the waiting trials, and those behind it that can be trained with it."""
        first = self._next(waiting)
        batch = [first]
        while waiting and first.simulation.benefits_from_batching and len(batch) < self._max_runs:
            if batch_key(waiting[0].arm.spec) != batch_key(first.trial.arm.spec):
                break
            batch.append(self._next(waiting))
        for run, report in Driver(batch, inf, lambda: False).play():
            yield run.trial, report

    def play_up_to(self, runs: Sequence[tuple[Arm, int]], until: int) -> Iterator[RoundReport]:
        """Play these arms with these seeds up to a round."""
        waiting = deque(Trial(arm, seed, until) for arm, seed in runs)
        while waiting:
            for _, report in self.play_next(waiting):
                yield report

    def state_of(self, arm: Arm, seed: int) -> Path:
        """The checkpoint of a run that has begun and waits."""
        return self._folder / f"{arm.index}-{seed}"

    def _next(self, waiting: deque[Trial]) -> TrialRun:
        trial = waiting.popleft()
        return TrialRun(trial, self._create, self.state_of(trial.arm, trial.seed))


def run(
    spec: ExperimentSpec,
    resume: Path | None = None,
    decided: Callable[[Decision], None] | None = None,
    proposed: Callable[[Arm], None] | None = None,
    *,
    data_dir: Path | None = None,
    models_allowed: Sequence[str] = (),
) -> Iterator[RoundReport]:
    """Run every arm with every seed, under a search as far as it is promoted; yields one report per
    round.

    Runs come one after another, or in batches where that is faster: then the reports of a round
    follow one another. `resume` is a checkpoint to continue from, for a specification of a single
    run. `decided` is called with each decision of a search that stops arms, `proposed` with each trial
    of a study, whose settings are known then. Data sets and pretrained weights are in folders of
    `data_dir` (default: DATA_DIR). `models_allowed` are the patterns of import paths whose code may be
    run. Raises SpecificationError, DataUnavailableError, or
    CheckpointError if the checkpoint belongs to another run.
    """
    arms = spec.arms()
    if resume is not None and len(arms) * len(spec.seeds) != 1:
        raise SpecificationError("/seeds", "a checkpoint resumes a single run; give one seed and no sweep")
    decided, proposed = decided or (lambda _: None), proposed or (lambda _: None)
    facts = facts_about(spec)

    def create(arm: Arm, seed: int) -> Simulation:
        return Simulation(
            arm.spec, seed, arm=arm.index, data_dir=data_dir, models_allowed=models_allowed, arms=facts
        )

    with TemporaryDirectory() as folder:
        batches = TrialBatches(Path(folder), create)
        match spec.search:
            case None:
                if resume is not None:
                    copyfile(resume, batches.state_of(arms[0], spec.seeds[0]))
                yield from batches.play_up_to(
                    [(arm, seed) for arm in arms for seed in spec.seeds], MAX_ROUNDS
                )
            case Study() as search:
                yield from StudySearch(spec, search, batches.play_up_to, proposed, decided).play()
            case search:
                yield from HalvingSearch(spec, search, batches.play_next, decided).play()
