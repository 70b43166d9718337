"""Select a round's clients: draw them, plan their work, and drop those who miss the deadline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedcore.engine.assignment import RoundTiming
from fedcore.engine.model_choice import choose_models, full_gradients, lowest_losses
from fedcore.engine.stages.base import CommonStart, Flow, RoundStage, RoundState, SelectedCohort
from fedcore.engine.timing import estimate_timing, speed_of
from fedcore.messages import DENSE, RoundMessage, answer_of, report_of
from fedcore.systems.clock import TimedRound, apply_deadline
from fedcore.systems.cohorts import draw, iterate_factor, select, weights
from fedcore.systems.participation.base import Outcome, RoundFacts, SelectionState
from fedcore.systems.work import plan_work

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedcore.engine.assignment import Ids
    from fedcore.engine.compressed_links import Traffic
    from fedcore.engine.server import RunContext, ServerState
    from fedcore.systems.availability import Reachable

    Floats = NDArray[np.float64]


class Select(RoundStage):
    """Draw clients by the participation scheme, whose state is the stage's own."""

    name = "select"
    plays_empty = True

    def start(self, context: RunContext) -> SelectionState:
        return context.spec.participation.start_state(len(context.problem.share))

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        context, server = flow.context, state.server
        selected = select_cohort(context, server, state.traffic, flow.number)
        later = replace(server, seconds=server.seconds + (selected.seconds or 0.0))
        weight = _weights(context, selected)
        start = CommonStart(np.arange(len(selected.clients)), server.broadcast, flow.number)
        return replace(state, server=later), replace(
            flow,
            selected=selected,
            weights=weight,
            starts=(start,),
            statistics=server.statistics,
            factor=iterate_factor(context.spec.participation, weight) if len(weight) else 1.0,
            each=flow.each or "update_norm" in context.spec.participation.observes(),
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


def select_cohort(context: RunContext, server: ServerState, traffic: Traffic, round: int) -> SelectedCohort:
    """Select the clients of round `round`, counted from 1, which begins at the model x [D] of
    `server`; `traffic` changes in place.
    """
    spec, seed, problem, x = context.spec, context.seed, context.problem, server.broadcast
    scheme, word = spec.participation, x.element_size()
    drawn = draw(scheme, problem.share, seed, round, _reachable(context, server, round))
    estimate = partial(estimate_timing, context, traffic, round) if spec.systems.devices else None
    facts = RoundFacts(round, problem.share, problem.sizes, estimate)
    received, bytes_up, bytes_down, evaluations = None, 0, 0, 0
    if scheme.selects():
        answers, answer = None, answer_of(scheme, problem.dim)
        if answer is not None:
            received = traffic.down(drawn.clients, round)
            bytes_down, evaluations = int(received.sum()), len(drawn.clients)
            bytes_up = evaluations * answer.size(DENSE, word)
            answers = _answers(context, x, drawn.clients, answer)
        candidates = drawn.clients
        drawn = select(scheme, drawn, answers, server.own[Select.name], facts, seed)
        if received is not None:
            received = received[np.isin(candidates, drawn.clients)]
    if received is None:
        received = traffic.down(drawn.clients, round)
        bytes_down = int(received.sum())
    work, arrives = plan_work(spec.local, spec.systems, problem.sizes, drawn.clients, seed, round)
    seconds = timing = client_seconds = None
    if spec.systems.devices is not None:
        planned = TimedRound(work, arrives, 0.0)
        (work, arrives, seconds), each = _timed(context, traffic, drawn.clients, received, planned, round)
        busy = np.minimum(each, seconds).sum() / seconds if seconds else len(each)
        timing, client_seconds = RoundTiming(float(busy), len(each)), each[arrives]
    losses, arrived = None, drawn[arrives]
    if (report := report_of(scheme)) is not None:
        losses = lowest_losses(problem, x, arrived.clients)
        bytes_up, evaluations = bytes_up + len(losses) * report.size(DENSE, word), evaluations + len(losses)
    return SelectedCohort(
        arrived=arrived,
        drawn=len(drawn.clients),
        work=[item for item, kept in zip(work, arrives, strict=True) if kept],
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        seconds=seconds,
        timing=timing,
        facts=facts,
        evaluations=evaluations,
        losses=losses,
        client_seconds=client_seconds,
    )


def _reachable(context: RunContext, server: ServerState, round: int) -> Reachable | None:
    """The clients that can be reached when the round begins; None if all can."""
    if context.availability is None:
        return None
    return context.availability.reachable_at(server.seconds, len(context.problem.share), context.seed, round)


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


def _timed(
    context: RunContext, traffic: Traffic, clients: Ids, received: Ids, planned: TimedRound, round: int
) -> tuple[TimedRound, Floats]:
    """Apply the simulated clock's deadline to `planned`; also the seconds [M] that each client takes."""
    systems, (up, down), settling = context.spec.systems, traffic.exchange(1, round), traffic.settling(1)
    # The upload; the model, and then the next one, if they are sent; and an exchange of gradients,
    # up and down.
    messages = 1 + (received > 0) + (settling > 0) + 2 * bool(up or down)
    cohort = speed_of(context, clients, received + down + settling, traffic.up(1) + up, messages)
    timed = apply_deadline(systems.deadline, cohort, planned.work, planned.arrives)
    if context.availability is not None and not len(clients) and systems.deadline is None:
        timed = timed._replace(seconds=context.availability.empty_round_seconds())
    return timed, cohort.seconds(np.array([item.steps for item in timed.work], np.int64))


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
