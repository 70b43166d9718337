"""One communication round: its stages up to the training, the training itself, for several runs at once, and
the stages after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from fedcore.engine.network_state import bind_state
from fedcore.engine.stages.base import Flow, RoundCost, RoundStage, RoundState
from fedcore.engine.stages.train import after_training, job_of

if TYPE_CHECKING:
    from fedcore.engine.assignment import Engine, Job, Result
    from fedcore.engine.server import RunContext


@dataclass(frozen=True, slots=True)
class PendingRound:
    """A round before training."""

    state: RoundState
    flow: Flow
    seconds: float
    """Time that it has taken so far."""

    @property
    def job(self) -> Job | None:
        """The job for an engine; None if no client reaches the server."""
        return job_of(self.flow, self.flow.context.stages.after) if self.flow.work is not None else None


def open_round(context: RunContext, state: RoundState, number: int, *, each: bool = True) -> PendingRound:
    """Play round `number`, counted from 1, up to the training.

    `each` asks for the change of each client; it changes no bit of the round's result.
    """
    began = time.perf_counter()
    problem = bind_state(context.problem, state.server.statistics, state.table)
    flow = Flow(number, replace(context, problem=problem), each)
    played = _play(context.stages.before, state, flow)
    return PendingRound(*played, time.perf_counter() - began)


def close_round(pending: PendingRound, result: Result | None) -> tuple[RoundState, RoundCost]:
    """Play the round from the `result` of the training on; None if no client reached the server."""
    flow = pending.flow if result is None else after_training(pending.flow, result)
    state, flow = _play(flow.context.stages.after, pending.state, flow)
    assert flow.cost is not None
    return state, flow.cost


def _play(stages: Sequence[RoundStage], state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
    for stage in stages:
        if stage.plays_empty or flow.selected is None or len(flow.clients):
            state, flow = stage.play(state, flow)
    return state, flow


class TrainedRound(NamedTuple):
    """Result of the training in one round of one run."""

    result: Result | None = None
    """None if no client reached the server."""
    seconds: float = 0.0
    """The run's share of the time, by its local steps."""
    together: int = 1
    """How many runs the engine was given, this one among them."""


def train_cohorts(rounds: Sequence[PendingRound]) -> list[TrainedRound]:
    """Train together the rounds that use the same engine; results are in the order of `rounds`."""
    trained = [TrainedRound()] * len(rounds)
    wanted: dict[Engine, list[tuple[int, Job]]] = {}
    for index, opened in enumerate(rounds):
        if (job := opened.job) is not None:
            wanted.setdefault(opened.flow.context.engine, []).append((index, job))
    for engine, members in wanted.items():
        indices, jobs = zip(*members, strict=True)
        for index, result in zip(indices, _train(engine, jobs), strict=True):
            trained[index] = result
    return trained


def _train(engine: Engine, jobs: Sequence[Job]) -> list[TrainedRound]:
    began = time.perf_counter()
    results = engine(jobs)
    seconds, steps = time.perf_counter() - began, [int(job.work.steps.sum()) for job in jobs]
    return [
        TrainedRound(result, seconds * own / sum(steps), len(jobs))
        for result, own in zip(results, steps, strict=True)
    ]
