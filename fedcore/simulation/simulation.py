"""A run, one arm of an experiment with one seed, computed round by round, and batches of runs that
advance in lockstep; no database, no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fedcore.engine.choice import EngineChoice
from fedcore.engine.engines import EngineName, benefits_from_batching
from fedcore.engine.round import PendingRound, TrainedRound, train_cohorts
from fedcore.engine.shards import TrainShards
from fedcore.problems.supervised import ShareScoring, SupervisedProblem
from fedcore.simulation.best_round import BestRound
from fedcore.simulation.building import build_context, train_by
from fedcore.simulation.checkpoint import fingerprint
from fedcore.simulation.report import RoundReport, StopReason
from fedcore.simulation.rounds import begin, end
from fedcore.simulation.state import first_state, model_of, restored, save_state
from fedcore.spec import ExperimentSpec

MAX_BATCH_RUNS = 8
"""Maximum number of runs of one experiment trained together, where that is faster."""


class Simulation:
    """One run: a specification without a sweep, and one seed.

    Holds the context and the state of the run; `advance` plays a round.
    """

    def __init__(self, spec: ExperimentSpec, seed: int, **options: Any) -> None:
        """Load the problem and stop before the first round; the options are those of `build_context`.

        Raises DataUnavailableError if the data set or the device trace is not on this machine,
        SpecificationError if the data cannot be divided as requested or the model is not allowed.
        """
        self.spec, self.seed = spec, seed
        self.context = build_context(spec, seed, **options)
        self.state = first_state(self.context)

    @property
    def round(self) -> int:
        """The last round, counted from 1."""
        return self.state.round

    @property
    def diverged(self) -> bool:
        """True if the model or its loss is no longer finite."""
        return self.state.diverged

    @property
    def divergence(self) -> str | None:
        """Where the first number was not finite, of a run that diverged."""
        return self.state.divergence

    @property
    def batched_runs(self) -> int:
        """Maximum number of runs that were trained together, this one among them."""
        return self.state.batched_runs

    @property
    def best(self) -> BestRound | None:
        """The best evaluated round so far, whose model is kept; None if there is none."""
        return self.state.best

    @property
    def finished(self) -> bool:
        """True if all rounds are done, or the run has diverged or was stopped early."""
        return self.state.finished(self.spec.rounds)

    @property
    def stopped(self) -> StopReason | None:
        """Why the run ended before its last round; None if it did not, or diverged."""
        return self.state.stopped(self.spec.rounds)

    @property
    def choice(self) -> EngineChoice:
        """The engine of the run, and how it was chosen."""
        return self.context.choice

    @property
    def engine(self) -> EngineName:
        """The engine of the run."""
        return self.choice.engine

    @property
    def benefits_from_batching(self) -> bool:
        """True if the run is faster in a batch of runs."""
        in_shards = self.spec.execution.shard_count is not None
        return not in_shards and benefits_from_batching(self.engine, self.state.server.x.device)

    @property
    def memory_divisor(self) -> int:
        """The least factor by which the number of clients trained at once has been reduced."""
        return self.context.memory_divisor

    @property
    def precision(self) -> str:
        """`float32` or `float64`."""
        return self.spec.precision

    @property
    def data_source(self) -> str:
        """The actual data, for provenance."""
        return self.context.evaluated.data_source

    @property
    def data_sha256(self) -> str | None:
        """Digest of the data; None for generated data."""
        return self.context.evaluated.data_sha256

    @cached_property
    def chance_accuracy(self) -> float | None:
        """Share of the most frequent test label; None if there is none."""
        problem = self.context.evaluated
        return problem.chance_accuracy if isinstance(problem, SupervisedProblem) else None

    @property
    def noise_multiplier(self) -> float | None:
        """z of differential privacy, as given or as solved for; None without `privacy`."""
        return self.spec.noise_multiplier

    def advance(self) -> RoundReport:
        """Play the next round and report it."""
        (report,) = advance_batch([self])
        return report

    def begin(self) -> PendingRound:
        """Play the next round up to its training."""
        return begin(self.context, self.state)

    def end(self, pending: PendingRound, trained: TrainedRound) -> RoundReport:
        """Play the round from its training on, and report it."""
        self.state, report = end(self.context, pending, trained)
        return report

    def share(
        self,
        train: TrainShards | None = None,
        score: Callable[[Tensor | None], ShareScoring] | None = None,
    ) -> None:
        """Have other processes `train` the shards of cohorts, of a run with `execution.shards`, and
        help to `score` models with the running statistics that it is given; by default none does.
        """
        engine = train_by(self.spec, self.choice, train)
        self.context = replace(self.context, engine=engine, share_scoring=score)

    def model(self) -> dict[str, Tensor]:
        """The global model; see `model_of`."""
        return model_of(self.context, self.state)

    def best_model(self) -> Mapping[str, Tensor]:
        """The model after the round `best`, as `model` returns it; empty without one."""
        return self.state.best_model

    def checkpoint(self) -> bytes:
        """The whole state of the run; see `save_state`."""
        return save_state(self.context, self.state, self._fingerprint)

    def restore(self, data: bytes) -> None:
        """Restore the state of `checkpoint`.

        Raises CheckpointError if it is damaged or of another run.
        """
        self.context, self.state = restored(self.context, self.state, self._fingerprint, data)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.spec, self.seed, "rounds")


def advance_batch(simulations: Sequence[Simulation]) -> list[RoundReport]:
    """Play the next round of each run, whichever that is, and train them together.

    The results have the same bits as each run by itself where the engine promises that; else they
    agree to rounding.
    """
    opened = [simulation.begin() for simulation in simulations]
    members = zip(simulations, opened, train_cohorts(opened), strict=True)
    return [simulation.end(round, trained) for simulation, round, trained in members]


def batch_key(spec: ExperimentSpec) -> Hashable:
    """Key of the runs that are worth training together."""
    problem, execution = spec.problem, spec.execution
    return repr((problem.dataset, problem.model)), execution.engine, spec.precision
