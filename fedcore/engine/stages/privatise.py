"""Noise that clients add to their changes before they send them: local differential privacy."""

from fedcore.engine.stages.base import Flow, RoundStage, RoundState


class PrivatiseChanges(RoundStage):
    """Clients add noise to their changes before they are compressed; the server sees no others."""

    name = "privatise"
    reads_each = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        context, cohort, randomiser = flow.context, flow.cohort, flow.context.algorithm.randomiser
        assert randomiser is not None
        assert cohort is not None
        # `deltas`, which measures read, stay as they were computed.
        return state, flow.sending(
            lambda sent: randomiser.privatise(sent, cohort.clients, context.seed, flow.number)
        )
