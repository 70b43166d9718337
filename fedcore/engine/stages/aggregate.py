"""The server's part of a round: the changes of a cohort become one direction, along which its model moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedcore.core import Aggregate, Cohort, at_place, sent_part
from fedcore.engine.compressed_links import Links
from fedcore.engine.stages.base import Flow, RoundStage, RoundState

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.engine.server import ServerState


class Combine(RoundStage):
    """Combine the changes by the aggregator."""

    name = "aggregate"
    plays_empty = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        server, algorithm = state.server, flow.context.algorithm
        aggregator, models = algorithm.aggregator, algorithm.models
        cohort, seen = flow.cohort, flow.sums
        if cohort is None:
            if not aggregator.moves_alone:
                return state, flow
            cohort = _no_clients(flow, server)
            seen = server.broadcast.new_zeros(0, server.broadcast.shape[-1])
        elif seen is None:
            assert flow.change is not None
            sums = aggregator.weighted_sums(cohort)
            seen = flow.change if sums is None else sums @ flow.change
        seen = sent_part(models, seen)
        if flow.trained is not None and aggregator.drops_changes:
            seen = _marked(seen, [*flow.trained.shared.values(), *flow.network_state.values()])
        if seen.shape[1]:
            of_round = aggregator.of_round(flow.context.seed, flow.number)
            found = of_round.combine(seen, cohort, server.aggregator_state)
        else:  # clients train alone, and nothing travels
            found = Aggregate(seen.new_zeros(0), cohort.weights, server.aggregator_state)
        later = replace(server, aggregator_state=found.aggregator_state)
        found = replace(found, direction=at_place(models, found.direction))
        return replace(state, server=later), replace(flow, aggregate=found)


class Move(RoundStage):
    """Take the server optimiser's step, and send it through the downlink."""

    name = "move"
    plays_empty = True

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        if flow.aggregate is None:
            return state, flow
        server, direction = state.server, flow.aggregate.direction
        if flow.factor != 1.0:
            direction = direction + (flow.factor - 1.0) * server.broadcast
        move, optimiser = flow.context.algorithm.server.step(direction, server.optimiser)
        links = Links(flow.context, flow.clients, flow.number)
        move, residual = links.move(move, server.residual)
        later = replace(
            server,
            broadcast=server.broadcast + move,
            residual=residual,
            optimiser=optimiser,
            clock=server.clock + (0 if flow.work is None else int(flow.work.steps.max())),
        )
        return replace(state, server=later), flow


def _no_clients(flow: Flow, server: ServerState) -> Cohort:
    """A cohort without clients."""
    none = server.broadcast.new_zeros(0)
    return Cohort(
        clients=torch.from_numpy(np.zeros(0, np.int64)).to(none.device),
        weights=none,
        share=none,
        objective=none,
        population=len(flow.context.problem.share),
        steps=none,
        normaliser=none,
    )


def _marked(changes: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The `changes` [M, D], NaN where a number in any of the client's `others` [M, *] is not finite."""
    broken = torch.zeros(len(changes), dtype=torch.bool, device=changes.device)
    for vectors in others:
        broken = broken | ~vectors.isfinite().flatten(1).all(dim=1)
    return changes.masked_fill(broken[:, None], torch.nan)
