"""Noise that clients add to their changes before they send them: local differential privacy."""

from dataclasses import replace

from fedcore.core import at_place, sent_part
from fedcore.engine.stages.base import Flow, RoundStage, RoundState


class PrivatiseChanges(RoundStage):
    """Clients add noise to their changes before they are compressed; the server sees no others."""

    name = "privatise"
    reads_each = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        randomiser, models = flow.context.algorithm.randomiser, flow.context.algorithm.models
        assert randomiser is not None
        assert flow.cohort is not None
        assert flow.trained is not None
        sent = sent_part(models, flow.trained.delta)
        noisy = at_place(
            models, randomiser.privatise(sent, flow.cohort.clients, flow.context.seed, flow.number)
        )
        # `deltas`, which measures read, stay as they were computed.
        return state, replace(flow, trained=replace(flow.trained, delta=noisy), change=noisy, settled=noisy)
