"""A round of a run: its stages, its measures and its report, in two halves, between which runs may train
together.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import torch

from fedcore.engine.divergence import find_divergence
from fedcore.engine.network_state import bind_state, keeps_own
from fedcore.engine.personal import PersonalModels
from fedcore.engine.round import PendingRound, TrainedRound, close_round, open_round
from fedcore.measures import model_measures, needs_deltas, population_measures, round_measures
from fedcore.measures.base import Measured
from fedcore.problems.supervised import SupervisedProblem
from fedcore.problems.transformed import Transformed
from fedcore.simulation.best_round import best_round
from fedcore.simulation.report import RoundReport
from fedcore.simulation.state import RunState, model_of

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.engine.assignment import Observation
    from fedcore.engine.server import RunContext
    from fedcore.engine.stages.base import RoundCost

COLUMNS = ("train_loss", "test_loss", "test_accuracy")


def begin(context: RunContext, state: RunState) -> PendingRound:
    """Play the next round up to its training. The tables of `state` change in place."""
    number = state.round + 1
    return open_round(context, state, number, each=_looks_at_each(context, number))


def end(context: RunContext, pending: PendingRound, trained: TrainedRound) -> tuple[RunState, RoundReport]:
    """Play a round from its training on, and report it."""
    began = time.perf_counter()
    closed, cost = close_round(pending, trained.result)
    assert isinstance(closed, RunState)
    state = replace(
        closed, round=pending.flow.number, batched_runs=max(closed.batched_runs, trained.together)
    )
    measured = _measure(context, state, cost)
    if not _finite(state.server.x) or not isfinite(measured.get("train_loss", 0.0)):  # type: ignore[arg-type]
        found = find_divergence(pending, trained.result, state.server.x)
        state = replace(state, diverged=True, divergence=found.words)
        known = {"diverged_client": found.client, "diverged_step": found.step}
        measured |= {name: value for name, value in known.items() if value is not None}
    seconds = pending.seconds + trained.seconds + time.perf_counter() - began
    report = _report(context, state, cost, measured, seconds)
    best = best_round(state.best, report, context.spec.evaluation.best_model)
    if best is not state.best:
        named = model_of(context, state).items()
        model = {name: value.detach().to("cpu", copy=True) for name, value in named}
        state = replace(state, best=best, best_model=model)
    if rule := context.spec.early_stopping:
        watched = state.early_stopping.update(rule, state.round, report.value(rule.metric))
        state = replace(state, early_stopping=watched)
    return state, replace(report, stopped=state.stopped(context.spec.rounds))


def _looks_at_each(context: RunContext, round: int) -> bool:
    """True if the measures of a round need the change of each client."""
    evaluation = context.spec.evaluation
    return evaluation.due(round, context.spec.rounds) and needs_deltas(evaluation.reported)


def _measure(context: RunContext, state: RunState, cost: RoundCost) -> Measured:
    """The measures of the round that led to `state`."""
    spec, server, observation = context.spec, state.server, cost.observation
    measured = _evaluated(context, state, observation)
    if spec.evaluation.record_parameters:
        measured["x"] = server.x.flatten().tolist()
    if cost.simulated_seconds is not None:
        measured["simulated_seconds"] = server.seconds
    if observation is not None and (dropped := observation.combined.dropped) is not None:
        measured["dropped_updates"] = int(dropped.sum())
    if cost.evaluations:
        measured["selection_evaluations"] = cost.evaluations
    if spec.evaluation.due(state.round, spec.rounds) and (epsilon := spec.epsilon(state.round)) is not None:
        measured["epsilon"] = epsilon
        if "clip_norm" in server.aggregator_state:
            measured["clip_norm"] = float(server.aggregator_state["clip_norm"])
    return measured


def _evaluated(context: RunContext, state: RunState, observation: Observation | None) -> Measured:
    """The measures of this round that `evaluation` asks for."""
    evaluation, attackers, rounds = context.spec.evaluation, context.attackers, context.spec.rounds
    measures, measured = evaluation.reported, Measured()
    due, of_population = evaluation.due(state.round, rounds), evaluation.population_due(state.round, rounds)
    if not (due or of_population):
        return measured
    bound = partial(bind_state, statistics=state.server.statistics, table=state.table)
    evaluated, trained = bound(context.evaluated), bound(context.problem)
    x = state.server.first_model
    # What clients keep to themselves stays in this process.
    if context.share_scoring and isinstance(evaluated, SupervisedProblem) and not keeps_own(evaluated):
        evaluated = evaluated.sharing(context.share_scoring(state.server.statistics))
    if due:
        measured |= model_measures(evaluated, x, measures, attackers)
        samples = evaluated.sample_size if isinstance(evaluated, SupervisedProblem) else None
        if "train_loss" in measured and samples is not None:
            measured["train_loss_samples"] = samples
        if observation is not None:
            measured |= round_measures(trained, x, observation, measures, attackers)
    if of_population:
        scales = trained.factors if isinstance(trained, Transformed) else 1.0
        personal = partial(PersonalModels(context, state.server, state.table).accuracies, evaluated)
        measured |= population_measures(evaluated, x, observation, measures, scales, attackers, personal)
    return measured


def _report(
    context: RunContext, state: RunState, cost: RoundCost, measured: Measured, seconds: float
) -> RoundReport:
    columns = {name: measured.pop(name) for name in COLUMNS if name in measured}
    return RoundReport(
        arm=context.arm,
        seed=context.seed,
        round=state.round,
        local_steps=cost.local_steps,
        bytes_up=cost.bytes_up,
        bytes_down=cost.bytes_down,
        seconds=seconds,
        extra=measured,
        diverged=state.diverged,
        **columns,  # type: ignore[arg-type]
    )


def _finite(x: Tensor) -> bool:
    # A finite sum has finite terms, and is had in one pass; the sum of large ones may be infinite
    # all the same.
    return isfinite(float(x.sum())) or bool(torch.isfinite(x).all())
