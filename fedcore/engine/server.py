"""The constants of a run, and the server's state between its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedcore.core import Algorithm, Vectors, sent_part
from fedcore.engine.assignment import Engine
from fedcore.engine.choice import EngineChoice
from fedcore.engine.client_table import CLIENT_MEMORY, MemoryBudget
from fedcore.engine.codec import stored
from fedcore.engine.network_state import initial_statistics
from fedcore.problems import TrainingProblem
from fedcore.problems.supervised import ShareScoring
from fedcore.random import generator
from fedcore.spec import ExperimentSpec
from fedcore.spec.engines import ArmFacts
from fedcore.systems.attacks import Attackers
from fedcore.systems.availability import AvailabilityData
from fedcore.systems.device_traces import DeviceTrace
from fedcore.systems.timing import DrawContext

if TYPE_CHECKING:
    from fedcore.engine.stages import Stages

RESIDUAL = "uplink residual"
INITIAL_MODELS = "initial models"
"""Purpose of randomness."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """The constants of a run."""

    spec: ExperimentSpec
    seed: int
    algorithm: Algorithm
    problem: TrainingProblem
    """The problem trained on, with the clients that are drawn."""
    evaluated: TrainingProblem
    """The problem that measures are taken on: the clients' own samples, before any attack or noise."""
    choice: EngineChoice
    engine: Engine
    """The engine of `choice`, which may train in shards."""
    arms: ArmFacts
    """Facts about all arms of the experiment."""
    stages: Stages
    arm: int = 0
    """Position in the sweep, from 0."""
    memory_divisor: int = 1
    """Divides the number of clients trained at once; see `Job.memory_divisor`."""
    client_memory: MemoryBudget = CLIENT_MEMORY
    """Memory for what clients keep between rounds."""
    attackers: Attackers | None = None
    """The malicious clients, if there are any."""
    device_trace: DeviceTrace | None = None
    """The devices of `systems.devices.trace`, if it is given."""
    availability: AvailabilityData | None = None
    """`systems.availability`, if it is given."""
    share_scoring: Callable[[Tensor | None], ShareScoring] | None = None
    """Has other processes help to evaluate models, given the running statistics of these."""

    @property
    def trained(self) -> TrainingProblem:
        """The problem as engines see it: with one client if samples are pooled."""
        return self.problem.pooled() if self.algorithm.models.pooled else self.problem

    @property
    def draws(self) -> DrawContext:
        """The constants that draws depend on."""
        known = self.problem.share, self.problem.sizes, self.problem.dim
        return DrawContext(
            self.spec,
            self.seed,
            *known,
            self.availability,
            self.device_trace,
            self.algorithm.gradients_per_step(),
        )


@stored
@dataclass(frozen=True, slots=True)
class ServerState:
    """The server's state between rounds."""

    broadcast: Tensor
    """[D] the model as the clients know it; [k, D] of several, as all vectors of the server."""
    residual: Tensor
    """[D] what a compressed downlink with error feedback has yet to send."""
    optimiser: Vectors
    """[D] each: the server optimiser's state."""
    shared: Vectors
    """Vectors [D] of the rule, and sums of reports, broadcast beside x."""
    aggregator_state: Vectors
    """The aggregator's state, of any shape."""
    models_compressed: bool
    """True if the residual is of models: then broadcast + residual is x; else it is of mean
    gradients.
    """
    adaptive_parameters: Mapping[str, float]
    """The parameters of the rule that are adapted between rounds."""
    statistics: Tensor | None = None
    """[S] running statistics of batch norm that the server averages, if there are such."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The state that stages keep to themselves, by their names."""
    clock: int = 0
    """Local steps of all rounds so far, each round as long as its longest client."""
    seconds: float = 0.0
    """Simulated seconds since the start of the run."""

    @property
    def x(self) -> Tensor:
        """[D] the server's own model."""
        return self.broadcast + self.residual if self.models_compressed else self.broadcast

    @property
    def first_model(self) -> Tensor:
        """[D] x, or the first of several."""
        return self.x if self.broadcast.dim() == 1 else self.x[0]

    def with_own(self, name: str, own: object) -> ServerState:
        """The state after the stage of this name has changed its own."""
        return replace(self, own={**self.own, name: own})


def initial_state(context: RunContext) -> ServerState:
    """Return the server before the first round.

    Evaluates the training loss f(x_0) for parameters that adapt to how the loss changes.
    """
    x, algorithm = _first_models(context), context.algorithm
    return ServerState(
        broadcast=x,
        residual=torch.zeros_like(x),
        optimiser={name: torch.full_like(x, value) for name, value in algorithm.server.start().items()},
        shared={**{name: torch.zeros_like(x) for name in algorithm.rule.shared}, **_reported(algorithm, x)},
        aggregator_state=algorithm.aggregator.start(sent_part(algorithm.models, x)),
        adaptive_parameters={}
        if algorithm.tuner is None
        else adapt_tuning(context, algorithm.tuner.start(), x),
        models_compressed=algorithm.exchange is None,
        statistics=initial_statistics(context.problem),
        own={stage.name: own for stage in context.stages.before if (own := stage.start(context)) is not None},
    )


def _reported(algorithm: Algorithm, x: Tensor) -> Vectors:
    """The sums of reports before the first: zeros."""
    shapes = {} if algorithm.objective is None else algorithm.objective.shapes
    return {name: x.new_zeros(shape) for name, shape in shapes.items()}


def _first_models(context: RunContext) -> Tensor:
    """x [D]; of several models [k, D], each drawn anew and set apart by noise."""
    models, problem = context.algorithm.models, context.problem
    if models.kept == 1:
        return problem.initial()
    drawn = torch.stack([problem.initial(number) for number in range(models.kept)])
    noise = generator(context.seed, INITIAL_MODELS).standard_normal(drawn.shape)
    drawn = drawn + models.spread * torch.from_numpy(noise).to(drawn)
    return drawn if models.common is None else torch.where(models.common, drawn[0], drawn)


def adapt_tuning(context: RunContext, tuning: Mapping[str, float], x: Tensor) -> Mapping[str, float]:
    """Return the parameters adapted to the training loss of x [D]; without a tuner, nothing is evaluated."""
    if context.algorithm.tuner is None:
        return tuning
    loss = context.problem.evaluate(x, {"train_loss"})["train_loss"]
    assert isinstance(loss, float)
    return context.algorithm.tuner.adapt(tuning, loss)


def client_vectors(algorithm: Algorithm, x: Tensor) -> Mapping[str, Tensor]:
    """Initial per-client vectors, given the first model x [D]: the memory of rule and models, and the
    residual of a compressed uplink.
    """
    rule = algorithm.rule
    residual = torch.zeros_like(sent_part(algorithm.models, x))
    return {
        **{name: torch.zeros_like(x) for name in rule.memory},
        **({RESIDUAL: residual} if algorithm.uplink.error_feedback else {}),
        **rule.start(x),
        **algorithm.models.start(x),
    }
