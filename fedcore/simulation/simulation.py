"""A run, one arm of an experiment with one seed, computed round by round, and batches of runs that
advance in lockstep; no database, no queue.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from fedcore.core import ClientUpdate, parameters_sent
from fedcore.data.base import DATA_DIR
from fedcore.data.uploaded import DatasetStorage
from fedcore.engine.assignment import Job, Observation, Result
from fedcore.engine.choice import EngineChoice, choose_engine
from fedcore.engine.client_table import CLIENT_MEMORY, ClientTable, MemoryBudget
from fedcore.engine.codec import put_together, take_apart
from fedcore.engine.divergence import find_divergence
from fedcore.engine.engines import ENGINES, EngineName, benefits_from_batching
from fedcore.engine.network_state import bind_state, keeps_own, own_vectors, statistics_sent
from fedcore.engine.personal import PersonalModels
from fedcore.engine.process_tuning import make_gpu_deterministic, retain_freed_memory
from fedcore.engine.round import (
    PendingRound,
    TrainedRound,
    close_round,
    open_round,
    train_cohorts,
)
from fedcore.engine.server import RunContext, ServerState, client_vectors, initial_state
from fedcore.engine.shard_messages import (
    SCORES,
    ShardMessage,
    keeps_memory,
    memory_after,
    message_of_result,
    message_of_scoring,
    message_of_shard,
    scoring_of_message,
    shard_of_message,
)
from fedcore.engine.shards import Sharded, TrainShards, one_by_one, train_shard
from fedcore.engine.stages import stages_of
from fedcore.engine.stages.base import RoundCost, RoundState
from fedcore.errors import CheckpointError, SpecificationError
from fedcore.measures import model_measures, needs_deltas, population_measures, round_measures
from fedcore.messages import messages_of
from fedcore.problems import TrainingProblem, load_problem, poison_problem, privatise_problem, trained_on
from fedcore.problems.supervised import Scoring, ShareScoring, SupervisedProblem
from fedcore.problems.transformed import Transformed
from fedcore.simulation import checkpoint
from fedcore.simulation.best_round import BestRound, best_round
from fedcore.simulation.early_stopping import EarlyStoppingState
from fedcore.simulation.report import RoundReport, StopReason
from fedcore.spec import ExperimentSpec
from fedcore.spec.checks import personal_measures
from fedcore.spec.engines import ArmFacts, facts_about
from fedcore.spec.evaluation import NO_BEST_MODEL
from fedcore.systems.attacks import Attackers
from fedcore.systems.traffic import Traffic

MAX_BATCH_RUNS = 8
"""Maximum number of runs of one experiment trained together, where that is faster."""
COLUMNS = ("train_loss", "test_loss", "test_accuracy")


class Simulation:
    """One run: a specification without a sweep, and one seed.

    Holds the run's state; `advance` plays a round.
    """

    def __init__(  # noqa: PLR0913 - where data and weights come from differs between processes
        self,
        spec: ExperimentSpec,
        seed: int,
        *,
        arm: int = 0,
        device: str = "cpu",
        data_dir: Path | None = None,
        storage: DatasetStorage | None = None,
        weights_dir: Path | None = None,
        models_allowed: Sequence[str] = (),
        arms: ArmFacts | None = None,
        choice: EngineChoice | None = None,
        memory_divisor: int = 1,
        client_memory: MemoryBudget = CLIENT_MEMORY,
    ) -> None:
        """Load the problem and stop before the first round; users' own data come from `storage` and
        uploaded files of pretrained networks from `weights_dir`, others from folders of `data_dir`
        (default: DATA_DIR). `models_allowed` are the patterns of import paths whose code may be run.

        `arms` are the facts about all arms of its experiment, which have one engine (default: this run
        is all). `choice` is the engine of earlier rounds, which continues if it can. `memory_divisor`
        divides the number of clients trained at once, after an out-of-memory error: the result has
        the same bits, except from the engine `vectorised`, where it agrees to rounding. `client_memory`
        is for what clients keep between rounds.

        Raises DataUnavailableError if the data set or the device trace is not on this machine,
        SpecificationError if the data cannot be divided as requested or the model is not allowed.
        """
        if spec.problem.model is not None:
            spec.problem.model.check_allowed(models_allowed)
        retain_freed_memory()
        make_gpu_deterministic(torch.device(device))
        self.arm, self.seed, self.spec = arm, seed, spec
        dtype = getattr(torch, spec.precision)
        folder = data_dir or DATA_DIR.expanduser()
        problem = load_problem(
            spec.problem,
            seed,
            device=device,
            dtype=dtype,
            autocast=spec.execution.autocast is not None,
            data_dir=folder,
            storage=storage,
            weights_dir=weights_dir,
        )
        _check_own_tests(spec, problem)
        self._problem, self._loss_samples = problem, None
        if spec.evaluation.training_loss == "sample" and isinstance(problem, SupervisedProblem):
            # Training knows nothing of the sample: adaptive parameters follow the whole training loss.
            self._problem = problem.estimating(seed)
            self._loss_samples = self._problem.sample_size
        attackers = None
        if (attack := spec.systems.attack) is not None:
            clients = attack.clients(seed, len(problem.share))
            attackers = Attackers(attack, clients, spec.problem.dataset.shape().classes, seed)
        devices = spec.systems.devices
        trace = None if devices is None or devices.trace is None else devices.trace.load(folder)
        available = spec.systems.availability
        built = spec.build()
        trained = trained_on(privatise_problem(poison_problem(problem, attackers), spec), spec.participation)
        named = problem.coordinates()
        algorithm = built.for_model(named)
        # Levels of compression are shares of what travels.
        if sent := parameters_sent(algorithm.models, trained.dim):
            uplink, downlink = spec.compression.build(sent)
            algorithm = replace(algorithm, uplink=uplink, downlink=downlink)
        self._setting = RunContext(
            spec,
            seed,
            algorithm,
            trained,
            ENGINES["reference"],
            stages_of(spec),
            memory_divisor,
            attackers,
            trace,
            None if available is None else available.load(folder),
        )
        self._server = initial_state(self._setting)
        population = len(problem.share)
        self._room = client_memory
        vectors = {
            **client_vectors(algorithm, self._first_model),
            **own_vectors(problem, algorithm.models),
        }
        self._clients = ClientTable(vectors, population, self._room)
        self._traffic = self._new_traffic()
        self.round, self.diverged, self._seconds = 0, False, 0.0
        self.divergence: str | None = None
        """Where the first number was not finite, of a run that diverged."""
        self.batched_runs, self._watch = 1, EarlyStoppingState()
        self.share_scoring: ShareScoring | None = None
        """Has other processes help to evaluate models."""
        self.best: BestRound | None = None
        """The best evaluated round so far, whose model is kept; None if there is none."""
        self._best_model: Mapping[str, Tensor] = {}
        self._arms = arms or facts_about(spec)
        self._choose(choice)

    @property
    def finished(self) -> bool:
        """True if all rounds are done, or the run has diverged or was stopped early."""
        return self.diverged or self._watch.reason is not None or self.round >= self.spec.rounds

    @property
    def stopped(self) -> StopReason | None:
        """Why the run ended before its last round; None if it did not, or diverged."""
        return None if self.diverged or self.round >= self.spec.rounds else self._watch.reason

    @property
    def engine(self) -> EngineName:
        """The engine of the run."""
        return self.choice.engine

    @property
    def benefits_from_batching(self) -> bool:
        """True if the run is faster in a batch of runs."""
        in_shards = self.spec.execution.shard_count is not None
        return not in_shards and benefits_from_batching(self.engine, self._server.x.device)

    @property
    def train_shards(self) -> TrainShards:
        """Trains the shards of cohorts, of a run with `execution.shards`; by default one after another."""
        return self._train_shards

    @train_shards.setter
    def train_shards(self, train: TrainShards) -> None:
        self._train_shards = train
        count = self.spec.execution.shard_count
        if count is not None:
            self._setting = replace(self._setting, engine=Sharded(count, train))

    @property
    def memory_divisor(self) -> int:
        """The least factor by which the number of clients trained at once has been reduced."""
        return self._setting.memory_divisor

    @property
    def precision(self) -> str:
        """`float32` or `float64`."""
        return self.spec.precision

    @property
    def data_source(self) -> str:
        """The actual data, for provenance."""
        return self._problem.data_source

    @property
    def data_sha256(self) -> str | None:
        """Digest of the data; None for generated data."""
        return self._problem.data_sha256

    @cached_property
    def chance_accuracy(self) -> float | None:
        """Share of the most frequent test label; None if there is none."""
        return self._problem.chance_accuracy if isinstance(self._problem, SupervisedProblem) else None

    @property
    def noise_multiplier(self) -> float | None:
        """z of differential privacy, as given or as solved for; None without `privacy`."""
        return self.spec.noise_multiplier

    def advance(self) -> RoundReport:
        """Play the next round and report it."""
        opened = self.begin()
        return self.end(opened, *train_cohorts([opened]))

    def begin(self) -> PendingRound:
        """Play the next round up to its training."""
        began = time.perf_counter()
        opened = open_round(
            self._setting,
            self._state,
            self.round + 1,
            each=self._looks_at_each(self.round + 1),
        )
        self._seconds = time.perf_counter() - began
        return opened

    @property
    def _state(self) -> RoundState:
        return RoundState(self._server, self._clients, self._traffic)

    def end(self, pending: PendingRound, trained: TrainedRound) -> RoundReport:
        """Play the round from its training on, and report it."""
        began = time.perf_counter()
        self.round = pending.flow.number
        self.batched_runs = max(self.batched_runs, trained.together)
        state, account = close_round(pending, trained.result)
        self._server = state.server
        measured = self._measure(account.observation)
        if account.simulated_seconds is not None:
            measured["simulated_seconds"] = self._server.seconds
        observed = account.observation
        if observed is not None and (dropped := observed.combined.dropped) is not None:
            measured["dropped_updates"] = int(dropped.sum())
        if account.evaluations:
            measured["selection_evaluations"] = account.evaluations
        if self.spec.privacy is not None and self.spec.evaluation.due(self.round, self.spec.rounds):
            measured |= self._privacy_spent()
        finite = _finite(self._server.x)
        self.diverged = not finite or not isfinite(measured.get("train_loss", 0.0))  # type: ignore[arg-type]
        if self.diverged:
            measured |= self._diverged_at(pending, trained.result)
        report = self._report(
            account, measured, self._seconds + trained.seconds + time.perf_counter() - began
        )
        if self.spec.evaluation.best_model != NO_BEST_MODEL:
            self._note_best(report)
        if self.spec.early_stopping:
            self._watch = self._watch.update(
                self.spec.early_stopping, self.round, report.value(self.spec.early_stopping.metric)
            )
        return replace(report, stopped=self.stopped)

    @property
    def kept_elsewhere(self) -> bool:
        """True if `answer` keeps the memory of clients as it is after the round, so that it need not be
        sent again.
        """
        return keeps_memory(self._setting.algorithm)

    def shard_message(self, shard: Job, kept: Collection[int] = ()) -> ShardMessage:
        """The message that has `answer` of the same run elsewhere train a shard of this round.

        Without the memory of the clients `kept`: those whose last round it has trained.
        """
        return message_of_shard(shard, self.engine, self._server.adaptive_parameters, kept)

    def scoring_message(self, theta: Tensor, scoring: Scoring) -> ShardMessage:
        """The message that has `answer` of the same run elsewhere score a model of this round."""
        return message_of_scoring(theta, scoring, self._server.statistics)

    def answer(self, message: ShardMessage) -> ShardMessage:
        """Do a part of a round of another process; the run's own state is neither used nor changed.

        The memory of the clients trained here is kept beside it, for their next shard.
        """
        setting, device = self._setting, self._server.x.device
        if (scoring := scoring_of_message(message, device)) is not None:
            problem = bind_state(self._problem, scoring.statistics, self._clients)
            assert isinstance(problem, SupervisedProblem)
            return ShardMessage({}, {SCORES: problem.score(scoring.theta, scoring.batches)})
        shard = shard_of_message(message, setting.algorithm, setting.problem, device, self._kept)
        result = train_shard(ENGINES[message.header["engine"]], shard)
        if self.kept_elsewhere and isinstance(result, ClientUpdate):
            self._kept.scatter(shard.work.clients, memory_after(shard, result))
        return message_of_result(result)

    def model(self) -> dict[str, Tensor]:
        """Return the global model's trained parameters and running statistics, by the names of its
        module; of several models, each name after the number of the model.
        """
        named, count = self._bound(self._problem).named, self._setting.algorithm.models.kept
        if count == 1:
            return named(self._server.x)
        models = enumerate(self._server.x.view(count, -1))
        return {f"{number}.{name}": value for number, x in models for name, value in named(x).items()}

    def best_model(self) -> Mapping[str, Tensor]:
        """Return the model after the round `best`, as `model` does; empty without one."""
        return self._best_model

    def checkpoint(self) -> bytes:
        """Return the whole state of the run.

        The rounds after `restore` of it are bit-identical to the rounds that would have followed
        here.
        """
        tensors: dict[str, Tensor] = {}
        parts = {field.name: getattr(self._server, field.name) for field in fields(self._server)}
        state = {name: take_apart(part, name, tensors) for name, part in parts.items()}
        tensors |= {f"clients.{name}": value for name, value in self._clients.state().items()}
        tensors |= {
            f"traffic.{name}": torch.from_numpy(value) for name, value in self._traffic.state().items()
        }
        tensors |= {f"best.{name}": value for name, value in self.best_model().items()}
        manifest = {
            "run": self._fingerprint,
            "round": self.round,
            "server": state,
            "diverged": self.diverged,
            "divergence": self.divergence,
            "batched_runs": self.batched_runs,
            "engine": self.choice.document(),
            "memory_divisor": self.memory_divisor,
            "early_stopping": self._watch.document(),
            "best": self.best and self.best.document(),
            "noise_multiplier": self.noise_multiplier,
        }
        return checkpoint.dumps(tensors, manifest)

    def restore(self, data: bytes) -> None:
        """Restore the state of `checkpoint`.

        Raises CheckpointError if it is damaged or of another run.
        """
        tensors, manifest = checkpoint.loads(data)
        if manifest["run"] != self._fingerprint:
            raise CheckpointError("the checkpoint belongs to another specification or seed")
        if manifest["noise_multiplier"] != self.noise_multiplier:
            raise CheckpointError("the checkpoint was made with another noise multiplier")
        device = self._server.x.device
        state = {name: put_together(part, tensors, device) for name, part in manifest["server"].items()}
        self._server = ServerState(**state)
        self._choose(EngineChoice.of(manifest["engine"]))
        self._setting = replace(
            self._setting, memory_divisor=max(self.memory_divisor, manifest["memory_divisor"])
        )
        self._clients.load(_under("clients.", tensors))
        self._traffic.load({name: value.numpy() for name, value in _under("traffic.", tensors).items()})
        self.round, self.diverged = manifest["round"], manifest["diverged"]
        self.divergence = manifest["divergence"]
        self.batched_runs = manifest["batched_runs"]
        self._watch = EarlyStoppingState.of(manifest["early_stopping"])
        best = manifest["best"]
        self.best, self._best_model = best and BestRound(**best), _under("best.", tensors)

    def _choose(self, choice: EngineChoice | None) -> None:
        """Choose the engine.

        A run keeps it to its end, so that it ends in the same bits wherever it is interrupted.
        """
        setting, wanted = self._setting, self.spec.execution.engine
        self.choice = choose_engine(
            wanted, setting.algorithm, setting.problem, self._server.x.device, self._arms, choice
        )
        self._setting = replace(setting, engine=ENGINES[self.choice.engine])
        self.train_shards = one_by_one(self._setting.engine)

    def _new_traffic(self) -> Traffic:
        problem, algorithm = self._problem, self._setting.algorithm
        messages = messages_of(algorithm, problem.dim, statistics_sent(problem, algorithm.models))
        return Traffic(messages, algorithm, len(problem.share), self._server.x.element_size())

    @property
    def _first_model(self) -> Tensor:
        """[D] the server's model, or the first of several."""
        return self._server.x[: self._problem.dim]

    def _bound(self, problem: TrainingProblem) -> TrainingProblem:
        """`problem` with the state of its network after the last round."""
        return bind_state(problem, self._server.statistics, self._clients)

    @cached_property
    def _kept(self) -> ClientTable:
        """Memory of the clients that were trained here for another process. It has no more rows than the
        table of that process, and the same limit in memory.
        """
        algorithm = self._setting.algorithm
        vectors = client_vectors(algorithm, self._first_model)
        names = (*algorithm.rule.memory, *algorithm.models.memory) if self.kept_elsewhere else ()
        return ClientTable({name: vectors[name] for name in names}, len(self._problem.share), self._room)

    @cached_property
    def _fingerprint(self) -> str:
        return checkpoint.fingerprint(self.spec, self.seed, "rounds")

    def _note_best(self, report: RoundReport) -> None:
        found = best_round(self.best, report, self.spec.evaluation.best_model)
        if found is not None and found is not self.best:
            copied = {name: value.detach().to("cpu", copy=True) for name, value in self.model().items()}
            self.best, self._best_model = found, copied

    def _looks_at_each(self, round: int) -> bool:
        """Return True if the measures of this round need the delta of each client."""
        evaluation = self.spec.evaluation
        return evaluation.due(round, self.spec.rounds) and needs_deltas(evaluation.measures)

    def _measure(self, observation: Observation | None) -> dict[str, float | list[float]]:
        evaluation, problem, x = self.spec.evaluation, self._bound(self._problem), self._first_model
        # What clients keep to themselves stays in this process.
        if self.share_scoring and isinstance(problem, SupervisedProblem) and not keeps_own(problem):
            problem = problem.sharing(self.share_scoring)
        measured: dict[str, float | list[float]] = {}
        attackers = self._setting.attackers
        if evaluation.due(self.round, self.spec.rounds):
            measured |= model_measures(problem, x, evaluation.measures, attackers)
            if "train_loss" in measured and self._loss_samples is not None:
                measured["train_loss_samples"] = self._loss_samples
            if observation is not None:
                trained = self._bound(self._setting.problem)
                measured |= round_measures(trained, x, observation, evaluation.measures, attackers)
        if evaluation.population_due(self.round, self.spec.rounds):
            trained = self._bound(self._setting.problem)
            scales = trained.factors if isinstance(trained, Transformed) else 1.0
            models = PersonalModels(self._setting, self._server, self._clients)
            personal = partial(models.accuracies, problem)
            measured |= population_measures(
                problem, x, observation, evaluation.measures, scales, attackers, personal
            )
        if evaluation.record_parameters:
            measured["x"] = self._server.x.tolist()
        return measured

    def _diverged_at(self, pending: PendingRound, result: Result | None) -> dict[str, float | list[float]]:
        """The client and the local step where the run diverged, as measures."""
        found = find_divergence(pending, result, self._server.x)
        self.divergence = found.words
        known = {"diverged_client": found.client, "diverged_step": found.step}
        return {name: value for name, value in known.items() if value is not None}

    def _privacy_spent(self) -> dict[str, float | list[float]]:
        epsilon, state = self.spec.epsilon(self.round), self._server.aggregator_state
        assert epsilon is not None
        spent: dict[str, float | list[float]] = {"epsilon": epsilon}
        if "clip_norm" in state:
            spent["clip_norm"] = float(state["clip_norm"])
        return spent

    def _report(
        self, cost: RoundCost, measured: dict[str, float | list[float]], seconds: float
    ) -> RoundReport:
        columns = {name: measured.pop(name) for name in COLUMNS if name in measured}
        return RoundReport(
            arm=self.arm,
            seed=self.seed,
            round=self.round,
            local_steps=cost.local_steps,
            bytes_up=cost.bytes_up,
            bytes_down=cost.bytes_down,
            seconds=seconds,
            extra=measured,
            diverged=self.diverged,
            **columns,  # type: ignore[arg-type]
        )


def _finite(x: Tensor) -> bool:
    # A finite sum has finite terms, and is had in one pass; the sum of large ones may be infinite
    # all the same.
    return isfinite(float(x.sum())) or bool(torch.isfinite(x).all())


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


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


def _check_own_tests(spec: ExperimentSpec, problem: TrainingProblem) -> None:
    """Refuse measures on clients' own test samples where the data, once read, have none."""
    personal = personal_measures(spec)
    if not (personal and isinstance(problem, SupervisedProblem)):
        return
    owners = problem.data.owners
    if spec.problem.dataset.shape().classes and (owners is None or not (owners >= 0).any()):
        raise SpecificationError(
            "/evaluation/measures",
            f"{personal[0]} is taken on test samples of each client, but no test sample of"
            f" {problem.data.dataset.source} belongs to a client: omit it, or use other data",
        )
