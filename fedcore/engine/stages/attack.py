"""Messages that malicious clients send in place of their changes."""

from dataclasses import replace

from fedcore.engine.stages.base import Flow, RoundStage, RoundState


class ForgeChanges(RoundStage):
    """Malicious clients forge their changes."""

    name = "attack"
    reads_each = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        attackers, cohort = flow.context.attackers, flow.cohort
        assert attackers is not None
        assert cohort is not None
        forged = flow.sending(lambda sent: attackers.forge(sent, cohort.clients, flow.number))
        return state, replace(forged, deltas=forged.change)
