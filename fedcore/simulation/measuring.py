"""Measures of a round, as the specification asks for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fedcore.engine.network_state import bind_state, keeps_own
from fedcore.engine.personal import PersonalModels
from fedcore.measures import model_measures, needs_deltas, population_measures, round_measures
from fedcore.problems.supervised import SupervisedProblem
from fedcore.problems.transformed import Transformed

if TYPE_CHECKING:
    from fedcore.engine.assignment import Observation
    from fedcore.engine.server import RunContext
    from fedcore.engine.stages.base import RoundCost
    from fedcore.measures.base import Measured
    from fedcore.simulation.state import RunState


def looks_at_each(context: RunContext, round: int) -> bool:
    """True if the measures of a round need the change of each client."""
    evaluation = context.spec.evaluation
    return evaluation.due(round, context.spec.rounds) and needs_deltas(evaluation.measures)


def measure(context: RunContext, state: RunState, cost: RoundCost) -> Measured:
    """The measures of the round that led to `state`."""
    spec, server, observation = context.spec, state.server, cost.observation
    measured = _evaluated(context, state, observation)
    if spec.evaluation.record_parameters:
        measured["x"] = server.x.tolist()
    if cost.simulated_seconds is not None:
        measured["simulated_seconds"] = server.seconds
    if observation is not None and (dropped := observation.combined.dropped) is not None:
        measured["dropped_updates"] = int(dropped.sum())
    if cost.evaluations:
        measured["selection_evaluations"] = cost.evaluations
    if (epsilon := spec.epsilon(state.round)) is not None and spec.evaluation.due(state.round, spec.rounds):
        measured["epsilon"] = epsilon
        if "clip_norm" in server.aggregator_state:
            measured["clip_norm"] = float(server.aggregator_state["clip_norm"])
    return measured


def _evaluated(context: RunContext, state: RunState, observation: Observation | None) -> Measured:
    """What `evaluation.measures` asks for in this round."""
    evaluation, attackers, rounds = context.spec.evaluation, context.attackers, context.spec.rounds
    measures, measured = evaluation.measures, dict[str, float | list[float]]()
    bound = partial(bind_state, statistics=state.server.statistics, table=state.table)
    evaluated, trained = bound(context.evaluated), bound(context.problem)
    x = state.server.x[: evaluated.dim]
    # What clients keep to themselves stays in this process.
    if context.share_scoring and isinstance(evaluated, SupervisedProblem) and not keeps_own(evaluated):
        evaluated = evaluated.sharing(context.share_scoring(state.server.statistics))
    if evaluation.due(state.round, rounds):
        measured |= model_measures(evaluated, x, measures, attackers)
        samples = evaluated.sample_size if isinstance(evaluated, SupervisedProblem) else None
        if "train_loss" in measured and samples is not None:
            measured["train_loss_samples"] = samples
        if observation is not None:
            measured |= round_measures(trained, x, observation, measures, attackers)
    if evaluation.population_due(state.round, rounds):
        scales = trained.factors if isinstance(trained, Transformed) else 1.0
        personal = partial(PersonalModels(context, state.server, state.table).accuracies, evaluated)
        measured |= population_measures(evaluated, x, observation, measures, scales, attackers, personal)
    return measured
