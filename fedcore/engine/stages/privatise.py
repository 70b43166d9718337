"""Noise that clients add to their changes before they send them: local differential privacy."""

from dataclasses import replace

from fedcore.engine.stages.base import Flow, RoundStage, RoundState


class PrivatiseChanges(RoundStage):
    """Clients add noise to their changes before they are compressed; the server sees no others."""

    name = "privatise"
    reads_each = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        randomiser, stays = flow.context.algorithm.randomiser, flow.context.algorithm.models.stays
        assert randomiser is not None
        assert flow.cohort is not None
        assert flow.trained is not None
        noisy = randomiser.privatise(flow.trained.delta, flow.cohort.clients, flow.context.seed, flow.number)
        if stays is not None:
            noisy = noisy.masked_fill(stays, 0.0)  # what does not travel is not compressed either
        # `deltas`, which measures read, stay as they were computed.
        return state, replace(flow, trained=replace(flow.trained, delta=noisy), change=noisy, settled=noisy)
