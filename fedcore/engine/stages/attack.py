"""Messages that malicious clients send in place of their changes."""

from dataclasses import replace

from fedcore.core import at_place, sent_part
from fedcore.engine.stages.base import Flow, RoundStage, RoundState


class ForgeChanges(RoundStage):
    """Malicious clients forge their changes."""

    name = "attack"
    reads_each = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        attackers = flow.context.attackers
        assert attackers is not None
        assert flow.cohort is not None
        assert flow.trained is not None
        models, delta = flow.context.algorithm.models, flow.trained.delta
        sent = attackers.forge(sent_part(models, delta), flow.cohort.clients, flow.number)
        forged = at_place(models, sent)
        return state, replace(
            flow, trained=replace(flow.trained, delta=forged), deltas=forged, change=forged, settled=forged
        )
