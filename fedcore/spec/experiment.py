"""ExperimentSpec: one submitted document, validated whole."""

from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from fedcore.algorithms import AnyAlgorithm
from fedcore.algorithms.server import AnyServer, OwnServer
from fedcore.compression import Compression, TopK
from fedcore.core import Algorithm, Solver
from fedcore.errors import SpecificationError
from fedcore.spec import sweep
from fedcore.spec.base import MAX_ROUNDS, Block, Seed
from fedcore.spec.dataset import ExactProblem, Quadratic
from fedcore.spec.evaluation import Evaluation, Execution
from fedcore.spec.local import LocalSolver
from fedcore.spec.participation import AnyParticipation, Full, Trace, WithoutReplacement
from fedcore.spec.problem import Problem, ShardsPartition
from fedcore.spec.shapes import data_shape, dimension, population
from fedcore.spec.systems import AnyWork, PerClient, Systems, WorkTrace

MAX_RUNS = 10_000
MAX_PARAMETERS = 1_000_000_000
MAX_RECORDED_PARAMETERS = 1_000
Tag = Annotated[str, Field(pattern=r"^[\w][\w .:/-]{0,63}$")]


class ExperimentSpec(Block):
    """A federated-learning experiment: problem, algorithm, heterogeneity, compression, seeds and sweep."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """For people."""
    description: Annotated[str, Field(max_length=10_000)] = ""
    """For people."""
    tags: Annotated[tuple[Tag, ...], Field(max_length=32)] = ()
    """For finding it again."""
    problem: Problem
    """Data, who holds what, and model."""
    algorithm: AnyAlgorithm
    """The algorithm, with its parameters."""
    server: AnyServer | None = None
    """The server optimiser; absent, the algorithm's own."""
    local: LocalSolver
    """What a client does in one round."""
    participation: AnyParticipation = Full(kind="full")
    """Which clients take part in a round, and how they are weighed."""
    systems: Systems = Systems()
    """Systems heterogeneity: stragglers, and unequal work."""
    compression: Compression = Compression()
    """Compression of what is sent, by direction."""
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
    """Communication rounds T of each run."""
    evaluation: Evaluation = Evaluation()
    """What is measured, and when."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=1_000)] = (0,)
    """One run per seed and arm; arms that share a seed see the same cohorts, stragglers and mini-batches."""
    sweep: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(max_length=16, default_factory=dict)]
    """A dotted path (`local.optimizer.momentum`) or a block (`algorithm`) to the values it takes; the arms are the product."""
    execution: Execution = Execution()
    """How the runs are carried out."""

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            raise SpecificationError("/seeds", f"each seed once, not {list(self.seeds)}")
        count = sweep.size(self.sweep) * len(self.seeds)
        if count > MAX_RUNS:
            raise SpecificationError("/sweep", f"{count} runs (arms times seeds) exceed the {MAX_RUNS} one experiment may have")
        if self.sweep:
            self.arms()
        else:
            _check(self)
        return self

    def arms(self) -> list["Arm"]:
        """The points of the sweep, in the order of its product; one arm when there is no sweep."""
        points = enumerate(sweep.expand(self.model_dump(mode="json")))
        return [Arm(index=index, name=point.name, settings=point.settings, spec=_arm_spec(point)) for index, point in points]

    def build(self) -> Algorithm:
        """The algorithm of this specification, with its solver, server optimiser and compressors."""
        dim = dimension(self.problem)
        optimizer = self.local.optimizer
        override = self.server.build() if self.server else None
        lr = self.server.lr if isinstance(self.server, OwnServer) else self.algorithm.server_lr
        return Algorithm(
            rule=self.algorithm.rule(),
            aggregator=self.algorithm.aggregator(),
            server=override or self.algorithm.server(lr),
            solver=Solver(optimizer.momentum, optimizer.weight_decay, optimizer.prox_mu),
            uplink=self.compression.uplink.build(dim),
            downlink=self.compression.downlink.build(dim),
        )

    @property
    def precision(self) -> str:
        """`float32` or `float64`, resolved."""
        exact = isinstance(self.problem.dataset, ExactProblem)
        return self.execution.precision or ("float64" if exact else "float32")


class Arm(Block):
    """One point of a sweep: an experiment of its own, without a sweep."""

    index: int
    name: str
    """What sets it apart, as `momentum=0.9`; the algorithm's kind where there is no sweep."""
    settings: dict[str, Any]
    """The swept paths and their values here."""
    spec: ExperimentSpec


def _arm_spec(point: sweep.Point) -> ExperimentSpec:
    try:
        return ExperimentSpec.model_validate(point.document)
    except ValidationError as error:
        if sweep.drop_foreign_fields(point, error):
            return _arm_spec(point)
        first = error.errors()[0]
        place = "/".join(str(part) for part in first["loc"])
        raise SpecificationError("/sweep", f"arm {point.name!r} is invalid at {place}: {first['msg']}") from error
    except SpecificationError as error:
        raise SpecificationError(error.pointer, f"{error.detail} (arm {point.name!r})") from error


def _check(spec: ExperimentSpec) -> None:
    """Refuse combinations that no single block can see; raises SpecificationError."""
    clients, dim = population(spec.problem), dimension(spec.problem)
    if dim > MAX_PARAMETERS:
        raise SpecificationError("/problem/model", f"a model may have at most {MAX_PARAMETERS} parameters, this one has {dim}")
    _check_length(spec)
    _check_partition(spec, clients)
    _check_participation(spec, clients)
    for field, work in (("epochs", spec.systems.epochs), ("steps", spec.systems.steps), ("batch_size", spec.systems.batch_size)):
        _check_work(work, f"/systems/{field}", clients, spec.rounds)
    _check_compression(spec)
    _check_exact(spec)
    if spec.server is not None and spec.algorithm.server_lr != type(spec.algorithm).model_fields["server_lr"].default:
        raise SpecificationError("/server", "give the server's step size once: `server` or `algorithm.server_lr`")
    if spec.evaluation.record_parameters and dim > MAX_RECORDED_PARAMETERS:
        raise SpecificationError(
            "/evaluation/record_parameters", f"at most {MAX_RECORDED_PARAMETERS} parameters can be recorded, the model has {dim}"
        )


def _check_length(spec: ExperimentSpec) -> None:
    given = [spec.local.epochs, spec.local.steps, spec.systems.epochs, spec.systems.steps]
    if all(length is None for length in given):
        raise SpecificationError("/local", "say how long a client trains: `epochs` or `steps`, here or in `systems`")
    if (spec.local.epochs and spec.systems.steps) or (spec.local.steps and spec.systems.epochs):
        raise SpecificationError("/systems", "`local` and `systems` must both speak of epochs or both of steps")


def _check_partition(spec: ExperimentSpec, clients: int) -> None:
    partition = spec.problem.partition
    if partition is None:
        return
    shape = data_shape(spec.problem.dataset)
    if isinstance(partition, ShardsPartition):
        clients *= partition.shards_per_client
    least = getattr(partition, "min_samples", 1)
    if clients * least > shape.train_samples:
        raise SpecificationError(
            "/problem/partition", f"{clients} parts of at least {least} samples need more than the {shape.train_samples} there are"
        )
    classes = getattr(partition, "classes", 1)
    if classes > shape.classes:
        raise SpecificationError(
            "/problem/partition/classes",
            f"{spec.problem.dataset.kind} has {shape.classes} classes, so at most that many per client, not {classes}",
        )


def _check_participation(spec: ExperimentSpec, clients: int) -> None:
    scheme = spec.participation
    if isinstance(scheme, Trace):
        if len(scheme.rounds) < spec.rounds:
            raise SpecificationError(
                "/participation/rounds", f"a row for each of the {spec.rounds} rounds is needed, there are {len(scheme.rounds)}"
            )
        strangers = [client for row in scheme.rounds for client in row if client >= clients]
        if strangers:
            raise SpecificationError(
                "/participation/rounds", f"client {strangers[0]} does not exist; the {clients} clients are numbered from 0"
            )
        if scheme.weighting == "unbiased":
            raise SpecificationError("/participation/weighting", "a given trace has no sampling probabilities; use `samples` or `uniform`")
    elif not isinstance(scheme, Full):
        size = scheme.cohort_size(clients)
        with_repeats = scheme.kind == "with_replacement"
        if size > clients and not with_repeats:
            raise SpecificationError(
                "/participation/clients_per_round",
                f"{size} clients cannot be drawn from {clients} without replacement; use at most {clients}",
            )
    if isinstance(scheme, WithoutReplacement) and scheme.weighting is None and spec.algorithm.kind not in ("fedavg", "fedprox"):
        raise SpecificationError(
            "/participation", f"S2 averages models; {spec.algorithm.kind} averages changes: add `weighting: unbiased`, or use `uniform`"
        )


def _check_work(work: AnyWork | None, pointer: str, clients: int, rounds: int) -> None:
    if isinstance(work, PerClient) and len(work.values) != clients:
        raise SpecificationError(f"{pointer}/values", f"one value for each of the {clients} clients, not {len(work.values)}")
    if isinstance(work, WorkTrace):
        if len(work.rounds) < rounds:
            raise SpecificationError(f"{pointer}/rounds", f"a row for each of the {rounds} rounds is needed, there are {len(work.rounds)}")
        wrong = next((row for row in work.rounds if len(row) != clients), None)
        if wrong is not None:
            raise SpecificationError(
                f"{pointer}/rounds", f"each row needs an entry for each of the {clients} clients, one has {len(wrong)}"
            )


def _check_compression(spec: ExperimentSpec) -> None:
    dim = dimension(spec.problem)
    for link in ("uplink", "downlink"):
        compression = getattr(spec.compression, link)
        if isinstance(compression, TopK) and compression.kept(dim) > dim:
            raise SpecificationError(
                f"/compression/{link}", f"top_k cannot keep {compression.kept(dim)} of {dim} parameters; use at most {dim}"
            )


def _check_exact(spec: ExperimentSpec) -> None:
    dataset = spec.problem.dataset
    if isinstance(dataset, Quadratic) and (spec.local.batch_size != "full" or spec.systems.batch_size):
        raise SpecificationError(
            "/local/batch_size", "a quadratic has no samples to draw from: use `full`, and `gradient_noise` for stochastic gradients"
        )
