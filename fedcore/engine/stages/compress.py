"""Compression of what clients send: changes, or gradients in an exchange before training."""

from __future__ import annotations

from dataclasses import replace

from fedcore.engine.compressed_links import Links, exchange_gradients
from fedcore.engine.stages.base import Flow, RoundStage, RoundState


class ExchangeGradients(RoundStage):
    """Gather the clients' full gradients and send back their mean, both through compressed links."""

    name = "exchange"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        work, cohort, server = flow.work, flow.cohort, state.server
        assert work is not None
        assert work.local.full_gradient is not None
        assert cohort is not None
        gathered, kept, residual = exchange_gradients(
            Links(flow.context, flow.clients, flow.number),
            work.local.full_gradient,
            cohort,
            flow.memory,
            server.residual,
        )
        local = replace(work.local, mean_gradient=gathered)
        return replace(state, server=replace(server, residual=residual)), replace(
            flow, work=replace(work, local=local), kept={**flow.kept, **kept}
        )


class CompressChanges(RoundStage):
    """The server receives what the uplink's compressor leaves of the changes.

    The rest is lost, so clients settle their memory with what the server got. If it is sent later, memory of
    the exact change agrees with the server in the end, and is more stable.
    """

    name = "compress"
    reads_each = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        assert flow.change is not None
        links = Links(flow.context, flow.clients, flow.number)
        received, kept = links.up(flow.change, flow.memory)
        settled = flow.settled if flow.context.algorithm.uplink.telescopes() else received
        return state, replace(flow, change=received, settled=settled, kept={**flow.kept, **kept})
