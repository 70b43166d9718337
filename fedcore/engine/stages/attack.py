"""What malicious clients send in place of their changes."""

from dataclasses import replace

from fedcore.engine.stages.base import Flow, RunState, Stage


class ForgeChanges(Stage):
    """Malicious clients forge their changes."""

    name = "attack"
    reads_each = True

    def play(self, state: RunState, flow: Flow) -> tuple[RunState, Flow]:
        attackers = flow.context.attackers
        assert attackers is not None
        assert flow.cohort is not None
        assert flow.trained is not None
        forged = attackers.forge(flow.trained.delta, flow.cohort.clients, flow.number)
        return state, replace(flow, trained=replace(flow.trained, delta=forged), deltas=forged, change=forged)
