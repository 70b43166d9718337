"""Reports of clients on the models that they have trained, for an objective that shares them."""

from __future__ import annotations

from dataclasses import replace

from fedcore.core import PREVIOUS
from fedcore.engine.network_state import network_of
from fedcore.engine.stages.base import Flow, RoundStage, RoundState


class Report(RoundStage):
    """Sum the reports of the clients that the aggregator has not left out."""

    name = "report"
    reads_each = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        trained, server, dropped = flow.trained, state.server, flow.dropped
        network = network_of(flow.context.problem)
        assert trained is not None
        assert network is not None
        memory = dict(trained.memory)
        models = memory[PREVIOUS] if PREVIOUS in flow.context.algorithm.memory() else memory.pop(PREVIOUS)
        clients = flow.clients
        if dropped is not None:
            models, clients = models[~dropped], clients[~dropped.numpy(force=True)]
        shared = {**server.shared, **network.report(models, clients)}
        flow = replace(flow, trained=replace(trained, memory=memory))
        return replace(state, server=replace(server, shared=shared)), flow
