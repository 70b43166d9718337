"""Select a round's clients: draw them, assign their work, and drop those who miss the deadline."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import ClientContext, Vectors
from fedcore.data.plan import augmented_batches, gradient_noise
from fedcore.engine.assignment import CohortWork, Ids, RoundTiming
from fedcore.engine.compressed_links import Traffic
from fedcore.engine.local_solver import normaliser
from fedcore.engine.model_choice import choose_models, lowest_losses
from fedcore.engine.network_state import bind_personal, personal_statistics
from fedcore.engine.server import RunContext, ServerState
from fedcore.problems import TrainingProblem
from fedcore.solvers.schedules import StepSizes
from fedcore.systems.availability import Reachable
from fedcore.systems.clock import DeviceSpeed, TimedRound, apply_deadline, device_speed
from fedcore.systems.cohorts import Drawn, draw, select
from fedcore.systems.participation.base import Outcome, Question, RoundFacts, SelectionState, Timing
from fedcore.systems.work import Work, plan_work

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SelectedCohort:
    """The clients of one round that reach the server; there may be none."""

    arrived: Drawn
    drawn: int
    """How many clients were drawn, late ones included."""
    work: list[Work]
    """M, of those who arrive."""
    bytes_up: int
    """Bytes sent before training: the answers of candidates, and the losses that clients report."""
    bytes_down: int
    """Bytes that reached all clients who were drawn, before they train."""
    seconds: float | None
    """Duration of the round on the simulated clock, if there is one."""
    timing: RoundTiming | None = None
    """How the clients spent it."""
    facts: RoundFacts | None = None
    """Facts that the scheme selected by; None in an asynchronous run, which has no scheme."""
    evaluations: int = 0
    """Losses and full gradients that clients computed for the selection, each over all their
    samples.
    """
    losses: Floats | None = None
    """[M] F_i(x) of those who arrive, if the scheme observes it."""
    client_seconds: Floats | None = None
    """[M] seconds on the simulated clock, if there is one."""


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
        answers, question = None, scheme.asks()
        if question is not None:
            received = traffic.down(drawn.clients, round)
            bytes_down, evaluations = int(received.sum()), len(drawn.clients)
            bytes_up = evaluations * word * (1 if question == "loss" else problem.dim)
            answers = _answers(context, x, drawn.clients, question)
        candidates = drawn.clients
        drawn = select(scheme, drawn, answers, server.selection, facts, seed)
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
    if "loss" in scheme.observes():
        losses = lowest_losses(problem, context.algorithm.models, x, arrived.clients)
        bytes_up, evaluations = bytes_up + word * len(losses), evaluations + len(losses)
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


def _answers(context: RunContext, x: Tensor, clients: Ids, question: Question) -> Floats:
    """Losses [m] of the candidates at x [D], or the distances [m, m] between their gradients."""
    models, problem = context.algorithm.models, context.problem
    if question == "loss":
        return lowest_losses(problem, models, x, clients)
    gradients = _full_gradients(problem, choose_models(problem, models, x, clients).x, clients).double()
    distances: Floats = torch.cdist(gradients, gradients, compute_mode="donot_use_mm_for_euclid_dist").numpy(
        force=True
    )
    return distances


def selection_state(
    selected: SelectedCohort, context: RunContext, state: SelectionState, received: Tensor | None
) -> SelectionState:
    """The `state` of the scheme after a round; `received` [M, D] are the changes that reached the
    server, which a scheme that observes their norms needs.
    """
    if selected.facts is None:
        return state
    scheme, norms = context.spec.participation, None
    if "update_norm" in scheme.observes():
        assert received is not None
        norms = received.double().norm(dim=1).numpy(force=True)
    reports = Outcome(selected.arrived.clients, selected.losses, norms, selected.client_seconds)
    return scheme.update_state(state, reports, selected.facts)


def estimate_timing(context: RunContext, traffic: Traffic, round: int, clients: Ids) -> Timing:
    """Estimate of `clients` [m] that receive the whole model and are no stragglers."""
    spec = context.spec
    systems = spec.systems.model_copy(update={"stragglers": None})
    work, _ = plan_work(spec.local, systems, context.problem.sizes, clients, context.seed, round)
    dense, none = np.full(len(clients), traffic.dense()), np.zeros(len(clients), np.int64)
    download, upload = (
        speed_of(context, clients, down, up, 1) for down, up in ((dense, 0), (none, traffic.up(1)))
    )
    steps = np.array([item.steps for item in work], np.int64)
    return Timing(download.sending, steps / download.speed, upload.sending)


def speed_of(
    context: RunContext, clients: Ids, bytes_down: Ids, bytes_up: int, messages: Ids | int
) -> DeviceSpeed:
    """`device_speed` of `clients` [M] on the simulated clock of the run."""
    devices = context.spec.systems.devices
    assert devices is not None
    return device_speed(devices, clients, bytes_down, bytes_up, messages, context.seed, context.device_trace)


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


def assign_work(
    context: RunContext,
    server: ServerState,
    selected: SelectedCohort,
    memory: Vectors,
    round: int,
    *,
    scheduled: int | None = None,
) -> CohortWork:
    """Assign work before any exchange of gradients; `memory` [M, D] each is the clients' memory.

    `scheduled` is the round that the schedule of the step size is read at, if it is another one.
    """
    spec, seed, problem, clients = context.spec, context.seed, context.problem, selected.arrived.clients
    sizes = spec.local.step_sizes(spec.rounds, scheduled or round, server.clock)
    chosen = choose_models(problem, context.algorithm.models, server.broadcast, clients)
    steps = np.array([item.steps for item in selected.work], np.int64)
    noise = problem.gradient_noise
    return CohortWork(
        clients=clients,
        steps=steps,
        batches=augmented_batches(seed, round, clients, problem.sizes[clients], selected.work, problem.views),
        noise=tuple(
            gradient_noise(seed, round, *pair, problem.dim, noise)
            for pair in zip(clients.tolist(), steps.tolist(), strict=True)
        )
        if noise
        else None,
        sizes=sizes,
        local=_context(context, chosen.x, server, clients, memory, sizes, steps),
        models=chosen.numbers,
    )


def _context(
    setting: RunContext,
    x: Tensor,
    server: ServerState,
    clients: Ids,
    memory: Vectors,
    sizes: StepSizes,
    steps: Ids,
) -> ClientContext:
    rule, models, problem = setting.algorithm.rule, setting.algorithm.models, setting.problem
    spent = normaliser(rule, setting.algorithm.solver, sizes, steps)
    context = ClientContext(
        x=x,
        shared=server.shared,
        memory={name: memory[name] for name in (*rule.memory, *models.memory)},
        full_gradient=None,
        mean_gradient=None,
        steps=torch.from_numpy(steps[:, None]).to(x),
        normaliser=torch.from_numpy(spent[:, None]).to(x),
        lr=sizes.first,
    )
    if models.full_gradient:
        own = personal_statistics(problem, models, server.statistics, memory, len(clients))
        at = models.personal_model(x, context.memory)
        gradients = _full_gradients(bind_personal(problem, clients, own), at, clients)
        return replace(context, full_gradient=gradients)
    if "full_gradient" in rule.needs():
        return replace(context, full_gradient=_full_gradients(problem, x, clients))
    return context


def _full_gradients(problem: TrainingProblem, models: Tensor, clients: Ids) -> Tensor:
    """[M, D] full gradients of `clients` [M] at one model [D], or of each client at its own in
    `models` [M, D].
    """
    if models.dim() == 1:
        return problem.client_gradients(models, clients)
    rows = range(len(clients))
    return torch.cat([problem.client_gradients(models[row], clients[row : row + 1]) for row in rows])
