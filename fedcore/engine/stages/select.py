"""Select a round's clients, and weigh them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedcore.engine.model_choice import choose_models, full_gradients, lowest_losses
from fedcore.engine.stages.base import CommonStart, Flow, RoundStage, RoundState
from fedcore.systems.cohorts import iterate_factor, select, weights
from fedcore.systems.participation.base import Outcome, RoundFacts, SelectionState
from fedcore.systems.selection import SelectedCohort, select_cohort

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedcore.engine.assignment import Ids
    from fedcore.engine.server import RunContext
    from fedcore.messages import RoundMessage
    from fedcore.systems.cohorts import Drawn

    Floats = NDArray[np.float64]


class Select(RoundStage):
    """Draw clients by the participation scheme, whose state is the stage's own."""

    name = "select"
    plays_empty = True

    def start(self, context: RunContext) -> SelectionState:
        return context.spec.participation.start_state(len(context.problem.share))

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        context, server = flow.context, state.server
        scheme, x = context.spec.participation, server.broadcast

        def choose(candidates: Drawn, answer: RoundMessage | None, facts: RoundFacts) -> Drawn:
            if not scheme.selects():
                return candidates
            answers = None if answer is None else _answers(context, x, candidates.clients, answer)
            return select(scheme, candidates, answers, server.own[self.name], facts, context.seed)

        selected = select_cohort(context.draws, server.seconds, state.traffic, flow.number, choose)
        if "loss" in scheme.observes():
            losses = lowest_losses(context.problem, x, selected.clients)
            selected = replace(selected, losses=losses)
        later = replace(server, seconds=server.seconds + (selected.seconds or 0.0))
        weight = _weights(context, selected)
        start = CommonStart(np.arange(len(selected.clients)), server.broadcast, flow.number)
        return replace(state, server=later), replace(
            flow,
            selected=selected,
            weights=weight,
            starts=(start,),
            statistics=server.statistics,
            factor=iterate_factor(scheme, weight) if len(weight) else 1.0,
            each=flow.each or "update_norm" in scheme.observes(),
        )


class Learn(RoundStage):
    """Tell the scheme what the server knows of its clients after the round."""

    name = "learn"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        server, scheme, selected = state.server, flow.context.spec.participation, flow.selected
        assert selected is not None
        assert selected.facts is not None
        norms = None
        if "update_norm" in scheme.observes():
            received = flow.deltas if flow.change is None else flow.change
            assert received is not None
            norms = received.double().norm(dim=1).numpy(force=True)
        reports = Outcome(selected.clients, selected.losses, norms, selected.client_seconds)
        known = scheme.update_state(server.own[Select.name], reports, selected.facts)
        return replace(state, server=server.with_own(Select.name, known)), flow


def _answers(context: RunContext, x: Tensor, clients: Ids, answer: RoundMessage) -> Floats:
    """Losses [m] of the candidates at x [D], or the distances [m, m] between their gradients."""
    problem = context.problem
    if answer.reveals == "loss":
        return lowest_losses(problem, x, clients)
    gradients = full_gradients(problem, choose_models(problem, x, clients).x, clients).double()
    distances: Floats = torch.cdist(gradients, gradients, compute_mode="donot_use_mm_for_euclid_dist").numpy(
        force=True
    )
    return distances


def _weights(context: RunContext, selected: SelectedCohort) -> Floats:
    """[M] w_i.

    Where x must be the average of what distinct clients hold, each counts once however often it was
    drawn.
    """
    arrived, algorithm = selected.arrived, context.spec.algorithm
    if not len(arrived.clients):
        return np.zeros(0)
    if algorithm.averages_exactly:
        arrived = replace(arrived, times=np.ones_like(arrived.times))
    stragglers = context.spec.systems.stragglers
    return weights(
        context.spec.participation,
        arrived,
        context.problem.share,
        algorithm.weighting,
        selected.drawn,
        stragglers,
    )
