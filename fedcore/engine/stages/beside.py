"""State that the server keeps beside its model: shared vectors, running statistics, and parameters that it
adapts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedcore.engine.network_state import bind_state, mean_statistics, split_statistics
from fedcore.engine.server import adapt_tuning
from fedcore.engine.stages.base import Flow, RoundStage, RoundState
from fedcore.problems.network import STATISTICS

if TYPE_CHECKING:
    from fedcore.core import Cohort


class MoveShared(RoundStage):
    """Move the vectors that the rule shares, by the aggregate."""

    name = "shared"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        server, cohort, dropped, aggregate = state.server, _counted(flow), flow.dropped, flow.aggregate
        assert aggregate is not None
        sent = {} if flow.trained is None else flow.trained.shared
        if dropped is not None:
            sent = {name: vectors[~dropped] for name, vectors in sent.items()}
        if not len(cohort.clients):
            return state, flow
        shared = flow.context.algorithm.rule.move_shared(server.shared, sent, cohort, aggregate)
        return replace(state, server=replace(server, shared={**server.shared, **shared})), flow


class MoveSharedBySent(MoveShared):
    """Move the vectors that the rule shares, by what clients have sent for them."""

    reads_each = True


class AverageStatistics(RoundStage):
    """Average the clients' running statistics of batch norm, and leave them those of personal models."""

    name = "statistics"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        before, trained = state.server.statistics, flow.network_state.get(STATISTICS)
        if before is None or trained is None:
            return state, flow
        cohort, dropped, models = _counted(flow), flow.dropped, flow.context.algorithm.models
        sent, kept = split_statistics(flow.context.problem, models, before, trained, flow.memory)
        averaged = mean_statistics(before, sent if dropped is None else sent[~dropped], cohort)
        if flow.paced:
            averaged = before + cohort.weights.sum() * (averaged - before)
        return replace(state, server=replace(state.server, statistics=averaged)), replace(
            flow, network_state={}, kept={**flow.kept, **kept}
        )


class Tune(RoundStage):
    """Give the rule the parameters that the server adapts."""

    name = "tune"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        algorithm = flow.context.algorithm.tuned(state.server.adaptive_parameters)
        return state, replace(flow, context=replace(flow.context, algorithm=algorithm))


class Adapt(RoundStage):
    """Adapt these parameters to the training loss of the new model."""

    name = "adapt"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        server = state.server
        problem = bind_state(flow.context.problem, server.statistics, state.table)
        context = replace(flow.context, problem=problem)
        adapted = adapt_tuning(context, server.adaptive_parameters, server.x)
        return replace(state, server=replace(server, adaptive_parameters=adapted)), flow


def _counted(flow: Flow) -> Cohort:
    """The cohort without clients that the aggregator has left out."""
    assert flow.cohort is not None
    return flow.cohort if flow.dropped is None else flow.cohort.without(flow.dropped)
