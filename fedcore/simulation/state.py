"""The state of a run between two rounds, and how a checkpoint stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from fedcore.engine.choice import EngineChoice
from fedcore.engine.client_table import ClientTable
from fedcore.engine.codec import put_together, stored, take_apart
from fedcore.engine.network_state import bind_state, own_vectors, statistics_sent
from fedcore.engine.server import RunContext, client_vectors, initial_state
from fedcore.engine.stages.base import RoundState
from fedcore.errors import CheckpointError
from fedcore.messages import messages_of
from fedcore.simulation import checkpoint
from fedcore.simulation.best_round import BestRound
from fedcore.simulation.building import with_choice
from fedcore.simulation.early_stopping import EarlyStoppingState
from fedcore.simulation.report import StopReason
from fedcore.systems.traffic import Traffic

for _part in (BestRound, EarlyStoppingState, StopReason):
    stored(_part)
_TABLES = ("table", "traffic")
"""Parts that change in place."""
_ON_CPU = ("table", "best_model")
"""Parts that are read on the CPU: where rows of the table go, it decides itself."""


@dataclass(frozen=True, slots=True)
class RunState(RoundState):
    """The state of a run between two rounds: that of its stages, and what is known of the rounds so far."""

    round: int = 0
    """The last one, counted from 1."""
    diverged: bool = False
    """True if the model or its loss is no longer finite."""
    divergence: str | None = None
    """Where the first number was not finite, of a run that diverged."""
    batched_runs: int = 1
    """Maximum number of runs that were trained together, this one among them."""
    early_stopping: EarlyStoppingState = field(default_factory=EarlyStoppingState)
    best: BestRound | None = None
    """The best evaluated round so far, whose model is kept; None if there is none."""
    best_model: Mapping[str, Tensor] = field(default_factory=dict)
    """The model after that round, as `model_of` returns it, on the CPU; empty without one."""

    def stopped(self, rounds: int) -> StopReason | None:
        """Why the run ended before the last of its `rounds`; None if it did not, or diverged."""
        return None if self.diverged or self.round >= rounds else self.early_stopping.reason


def first_state(context: RunContext) -> RunState:
    """The state of a run before its first round."""
    server, algorithm, problem = initial_state(context), context.algorithm, context.evaluated
    vectors = {
        **client_vectors(algorithm, server.first_model),
        **own_vectors(problem, algorithm),
    }
    population = len(problem.share)
    messages = messages_of(algorithm, problem.dim, statistics_sent(problem, algorithm.models))
    return RunState(
        server,
        ClientTable(vectors, population, context.client_memory),
        Traffic(messages, algorithm, population, server.x.element_size()),
    )


def model_of(context: RunContext, state: RunState) -> dict[str, Tensor]:
    """The global model's trained parameters and running statistics, by the names of its module; of several
    models, each name after the number of the model.
    """
    problem = bind_state(context.evaluated, state.server.statistics, state.table)
    models = state.server.x
    if models.dim() == 1:
        return problem.named(models)
    named = enumerate(map(problem.named, models))
    return {f"{number}.{name}": value for number, parts in named for name, value in parts.items()}


def save_state(context: RunContext, state: RunState, run: str) -> bytes:
    """The whole state of the run with this fingerprint.

    The rounds after `restored` of it are bit-identical to the rounds that would have followed here.
    """
    parts = {part.name: getattr(state, part.name) for part in fields(state) if part.name not in _TABLES}
    parts |= {"table": state.table.state(), "traffic": state.traffic.state()}
    tensors: dict[str, Tensor] = {}
    manifest = {
        "run": run,
        "noise_multiplier": context.spec.noise_multiplier,
        "engine": context.choice.document(),
        "memory_divisor": context.memory_divisor,
        "state": {name: take_apart(part, name, tensors) for name, part in parts.items()},
    }
    return checkpoint.dumps(tensors, manifest)


def restored(context: RunContext, state: RunState, run: str, data: bytes) -> tuple[RunContext, RunState]:
    """The context and the state of the run that `save_state` stored; the tables of `state` change in place.

    Raises CheckpointError if it is damaged or of another run.
    """
    tensors, manifest = checkpoint.loads(data)
    if manifest["run"] != run:
        raise CheckpointError("the checkpoint belongs to another specification or seed")
    if manifest["noise_multiplier"] != context.spec.noise_multiplier:
        raise CheckpointError("the checkpoint was made with another noise multiplier")
    device = state.server.x.device
    parts = {
        name: put_together(part, tensors, torch.device("cpu") if name in _ON_CPU else device)
        for name, part in manifest["state"].items()
    }
    state.table.load(parts.pop("table"))
    state.traffic.load(parts.pop("traffic"))
    divisor = max(context.memory_divisor, manifest["memory_divisor"])
    chosen = with_choice(context, device, EngineChoice.of(manifest["engine"]))
    return replace(chosen, memory_divisor=divisor), replace(state, **parts)
