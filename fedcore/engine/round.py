"""One communication round: before training (draw, broadcast, exchange of gradients), the training
itself, for several runs at once, and after it (upload, aggregation).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import Aggregate, Aggregator, ClientUpdate, Cohort, Vectors
from fedcore.engine.assignment import AggregatedUpdate, CohortWork, Engine, Job, Observation, Result
from fedcore.engine.client_selection import SelectedCohort, assign_work, select_cohort, selection_state
from fedcore.engine.client_table import ClientTable
from fedcore.engine.compressed_links import NO_COMPRESSION, Links, Traffic, exchange_gradients
from fedcore.engine.network_state import (
    bind_state,
    mean_statistics,
    split_statistics,
    with_passes,
    without_state,
)
from fedcore.engine.server import RunContext, ServerState, adapt_tuning
from fedcore.problems.network import STATISTICS
from fedcore.random import generator
from fedcore.systems.cohorts import iterate_factor, objective_weights, weights

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Cost of a round: the steps of the clients that reached the server, and bytes in both
    directions.
    """

    local_steps: int
    bytes_up: int
    bytes_down: int
    simulated_seconds: float | None = None
    """Time on the simulated clock, if there is one."""
    evaluations: int = 0
    """Losses and full gradients computed for the selection; see `SelectedCohort.evaluations`."""
    observation: Observation | None = None
    """Facts for measures; None if no client's work arrived."""


@dataclass(frozen=True, slots=True)
class PendingRound:
    """A round before training: who takes part, and the work of those who reach the server."""

    setting: RunContext
    """The run's, with the rule as the round finds it."""
    number: int
    """Counted from 1."""
    server: ServerState
    selected: SelectedCohort
    training: "CohortTraining | None"
    """None if no client reaches the server."""

    each: bool
    """True if the delta of each client is needed afterwards."""

    @property
    def job(self) -> Job | None:
        """The job for an engine."""
        if self.training is None:
            return None
        algorithm, problem, work = self.setting.algorithm, self.setting.problem, self.training.work
        if not algorithm.starts_at_x():
            start = algorithm.models.starting_point(work.local.x, work.local.memory)
            work = replace(work, local=replace(work.local, x=start))
        sums = (
            algorithm.aggregator.weighted_sums(self.training.cohort) if _sends_deltas(self.setting) else None
        )
        stale, statistics = self.training.stale, self.server.statistics
        rounds = [self.number] * len(work.clients)
        if stale is not None:
            statistics, rounds = stale.statistics, stale.rounds
        return Job(
            algorithm,
            problem,
            with_passes(
                work, problem, algorithm.models, statistics, self.training.memory, self.setting.seed, rounds
            ),
            sums,
            self.each or sums is None,
            self.setting.memory_divisor,
        )


@dataclass(frozen=True, slots=True)
class StaleStarts:
    """Facts about clients that started in earlier rounds, in an asynchronous run."""

    rounds: list[int]
    """M: the round in which each client started."""
    statistics: Tensor | None
    """[M, S] the running statistics that each started with, if the server averages such."""
    offset: Tensor | None = None
    """[D] added to the direction, if the clients' models are mixed with the server's."""
    tier: int | None = None
    """The tier whose clients they are, if the models of tiers are mixed."""


@dataclass(frozen=True, slots=True)
class CohortTraining:
    """The cohort's work, and the values fixed before it."""

    work: CohortWork
    cohort: Cohort
    links: Links
    memory: Vectors
    """[M, D] each: what the clients kept."""
    kept: Vectors
    """[M, D] each: what error feedback keeps of an exchange before training."""
    factor: float
    """Multiplies x itself before the direction is added."""
    stale: StaleStarts | None = None
    """None if all clients start from the server's model."""


def open_round(
    context: RunContext,
    server: ServerState,
    table: ClientTable,
    traffic: Traffic,
    number: int,
    *,
    each: bool = True,
) -> PendingRound:
    """Play round `number`, counted from 1, up to the training; `traffic` changes in place.

    `each` asks for the delta of each client; it changes no bit of the round's result.
    """
    context = replace(context, problem=bind_state(context.problem, server.statistics, table))
    selected = select_cohort(context, server, traffic, number)
    each = each or "update_norm" in context.spec.participation.observes()
    if not len(selected.arrived.clients):
        return PendingRound(context, number, server, selected, None, each)
    context = replace(context, algorithm=context.algorithm.tuned(server.adaptive_parameters))
    clients = selected.arrived.clients
    weight = _weights(context, selected)
    memory, links = table.gather(clients), Links(context, clients, number)
    assignment = assign_work(context, server, selected, memory, number)
    cohort = cohort_of(context, assignment, weight, number)
    kept: Vectors = {}
    if context.algorithm.exchange is not None:
        assert assignment.local.full_gradient is not None
        gathered, kept, residual = exchange_gradients(
            links, assignment.local.full_gradient, cohort, memory, server.residual
        )
        server = replace(server, residual=residual)
        assignment = replace(assignment, local=replace(assignment.local, mean_gradient=gathered))
    factor = iterate_factor(context.spec.participation, weight)
    return PendingRound(
        context,
        number,
        server,
        selected,
        CohortTraining(assignment, cohort, links, memory, kept, factor),
        each,
    )


def close_round(
    pending: PendingRound, result: Result | None, table: ClientTable, traffic: Traffic
) -> tuple[ServerState, RoundCost]:
    """Play the round from the `result` of the training on; `table` and `traffic` change in place.

    A round that no client reaches leaves the server as it is, unless the aggregator moves alone.
    """
    selected, training = pending.selected, pending.training
    if selected.seconds is not None:
        later = replace(pending.server, seconds=pending.server.seconds + selected.seconds)
        pending = replace(pending, server=later)
    if result is None or training is None:
        cost = RoundCost(0, selected.bytes_up, selected.bytes_down, selected.seconds, selected.evaluations)
        return _aggregate_empty(pending), cost
    count = len(selected.arrived.clients)
    server, observed = _aggregate(pending, training, result, table)
    exchange_up, exchange_down = traffic.exchange(count, pending.number)
    problem = bind_state(pending.setting.problem, server.statistics, table)
    setting = replace(pending.setting, problem=problem)
    return replace(
        server, adaptive_parameters=adapt_tuning(setting, server.adaptive_parameters, server.x)
    ), RoundCost(
        local_steps=int(observed.work.steps.sum()),
        bytes_up=selected.bytes_up + exchange_up + traffic.up(count),
        bytes_down=selected.bytes_down
        + exchange_down
        + traffic.settle(selected.arrived.clients, pending.number),
        simulated_seconds=selected.seconds,
        evaluations=selected.evaluations,
        observation=observed,
    )


def _aggregate_empty(pending: PendingRound) -> ServerState:
    """The server after a round that no client reached."""
    setting, server = pending.setting, pending.server
    if not setting.algorithm.aggregator.moves_alone:
        return server
    clients = np.zeros(0, np.int64)
    none = server.broadcast.new_zeros(0)
    cohort = Cohort(
        clients=torch.from_numpy(clients).to(none.device),
        weights=none,
        share=none,
        objective=none,
        population=len(setting.problem.share),
        steps=none,
        normaliser=none,
    )
    aggregator = setting.algorithm.aggregator.of_round(setting.seed, pending.number)
    deltas = server.broadcast.new_zeros(0, len(server.broadcast))
    combined = aggregator.combine(deltas, cohort, server.aggregator_state)
    return _move(server, Links(setting, clients, pending.number), combined, 1.0)


def _aggregate(
    pending: PendingRound, training: CohortTraining, result: Result, table: ClientTable
) -> tuple[ServerState, Observation]:
    """The server's part: uplink, aggregation, server step, and the clients' new memory."""
    algorithm, server, assignment, kept = (
        pending.setting.algorithm,
        pending.server,
        training.work,
        training.kept,
    )
    state: Vectors = {}
    if isinstance(result, AggregatedUpdate):
        seen, deltas, upload = result.sums, result.deltas, None
        received = deltas
    else:
        result, state = without_state(result)
        if (attackers := pending.setting.attackers) is not None:
            forged = attackers.forge(result.delta, training.cohort.clients, pending.number)
            result = replace(result, delta=forged)
        seen, deltas, upload = result.delta, result.delta, result
        if server.models_compressed:
            seen, kept = training.links.up(deltas, training.memory)
            if algorithm.rule.remembers == "decoded" and not algorithm.uplink.telescopes():
                # What compression takes from a message is lost, so clients remember what the server
                # got. If it is sent later, memory of the exact change agrees with the server in the
                # end, and is more stable.
                upload = replace(upload, delta=seen)
        received = seen
        sums = algorithm.aggregator.weighted_sums(training.cohort)
        seen = seen if sums is None else sums @ seen
    aggregator = algorithm.aggregator.of_round(pending.setting.seed, pending.number)
    if upload is not None and aggregator.drops_changes:
        seen = _marked(seen, [*upload.shared.values(), *state.values()])
    server, combined = _combine(aggregator, seen, training, server)
    server = replace(
        _move(server, training.links, combined, training.factor),
        clock=server.clock + int(assignment.steps.max()),
    )
    if upload is not None:
        dropped = None if combined.dropped is None or not bool(combined.dropped.any()) else combined.dropped
        server, kept = _settle(pending.setting, server, training, upload, state, kept, dropped)
    table.scatter(assignment.clients, kept)
    chosen = selection_state(pending.selected, pending.setting, server.selection, received)
    server, timing = replace(server, selection=chosen), pending.selected.timing
    return server, Observation(algorithm, assignment, deltas, training.cohort, combined, timing)


def _settle(
    context: RunContext,
    server: ServerState,
    training: CohortTraining,
    upload: ClientUpdate,
    state: Vectors,
    kept: Vectors,
    dropped: Tensor | None,
) -> tuple[ServerState, Vectors]:
    """The server after all that clients sent beside their changes, and their new memory [M, *].

    Nothing of clients that are `dropped` [M] counts, and they keep the memory that they had.
    """
    rule, models = context.algorithm.rule, context.algorithm.models
    cohort, sent, statistics = training.cohort, upload.shared, None
    if state and server.statistics is not None:
        before, trained = server.statistics, state[STATISTICS]
        statistics, state = split_statistics(context.problem, models, before, trained, training.memory)
    if dropped is not None:
        cohort = cohort.without(dropped)
        sent = {name: vectors[~dropped] for name, vectors in sent.items()}
        statistics = None if statistics is None else statistics[~dropped]
    if len(cohort.clients):
        server = replace(server, shared=rule.move_shared(server.shared, sent, cohort))
    remembered = rule.remember(upload.delta, upload.shared, server.broadcast, training.work.local)
    kept = {**upload.memory, **remembered, **kept, **state}
    if statistics is not None and server.statistics is not None:
        server = _with_statistics(server, server.statistics, statistics, cohort, training.stale)
    if dropped is not None:
        kept = {name: torch.where(dropped[:, None], training.memory[name], new) for name, new in kept.items()}
    return server, kept


def _marked(changes: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The `changes` [M, D], NaN where a number in any of the client's `others` [M, *] is not finite."""
    broken = torch.zeros(len(changes), dtype=torch.bool, device=changes.device)
    for vectors in others:
        broken = broken | ~vectors.isfinite().all(dim=1)
    return changes.masked_fill(broken[:, None], torch.nan)


def _combine(
    aggregator: Aggregator, seen: Tensor, training: CohortTraining, server: ServerState
) -> tuple[ServerState, Aggregate]:
    combined, stale = aggregator.combine(seen, training.cohort, server.aggregator_state), training.stale
    if stale is None:
        return server, combined
    if stale.tier is not None:
        return _end_tier_round(server, stale.tier, combined)
    if stale.offset is not None:
        combined = replace(combined, direction=combined.direction + stale.offset)
    return server, combined


def _end_tier_round(server: ServerState, tier: int, aggregate: Aggregate) -> tuple[ServerState, Aggregate]:
    """The server with the new model of `tier`, whose clients' changes were `aggregate`, and the mixture of
    the models of all tiers in their place.
    """
    queue = server.queue
    assert queue is not None
    assert queue.tiers is not None
    tiers = queue.tiers.ended(tier, aggregate.direction)
    mixed = replace(
        aggregate,
        direction=tiers.move(tier, aggregate.direction, server.x),
        coefficients=float(tiers.weights()[tier]) * aggregate.coefficients,
    )
    return replace(server, queue=replace(queue, tiers=tiers)), mixed


def _with_statistics(
    server: ServerState, before: Tensor, statistics: Tensor, cohort: Cohort, stale: StaleStarts | None
) -> ServerState:
    """The server, whose running statistics [S] were `before`, given those [M, S] of the `cohort`.

    In an asynchronous run they move by the weight of what arrived, as the model does.
    """
    averaged = mean_statistics(before, statistics, cohort)
    if stale is None:
        return replace(server, statistics=averaged)
    if stale.tier is None:
        moved = before + cohort.weights.sum() * (averaged - before)
        return replace(server, statistics=moved)
    assert server.queue is not None
    assert server.queue.tiers is not None
    tiers = server.queue.tiers.with_statistics(stale.tier, averaged)
    return replace(server, statistics=tiers.mixed_statistics(), queue=replace(server.queue, tiers=tiers))


def _sends_deltas(context: RunContext) -> bool:
    """Return True if clients send plain deltas, so that weighted sums of them are all the server
    needs.
    """
    algorithm, attackers = context.algorithm, context.attackers
    if attackers is not None and attackers.attack.forges():
        return False
    if algorithm.rule.memory or algorithm.rule.shared or algorithm.models.memory:
        return False
    return algorithm.uplink == NO_COMPRESSION or algorithm.exchange is not None


def _weights(context: RunContext, selected: SelectedCohort) -> Floats:
    """[M] w_i.

    Where x must be the average of what distinct clients hold, each counts once however often it was
    drawn.
    """
    arrived, algorithm = selected.arrived, context.spec.algorithm
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


def cohort_of(context: RunContext, assignment: CohortWork, weight: Floats, number: int) -> Cohort:
    """The clients of round `number` with their weights [M], as aggregators see them."""
    x, clients, share = assignment.local.x, assignment.clients, context.problem.share
    spec = context.spec
    objective = objective_weights(spec.participation, share, spec.algorithm.weighting)
    order = None
    if "order" in context.algorithm.aggregator.needs():
        drawn = generator(context.seed, "order of the cohort", number).permutation(len(clients))
        order = torch.from_numpy(drawn).to(x.device)
    losses = None
    if "losses" in context.algorithm.aggregator.needs():
        losses = torch.from_numpy(context.problem.client_losses(x, clients)).to(x)
    return Cohort(
        clients=torch.from_numpy(clients).to(x.device),
        weights=torch.from_numpy(weight).to(x),
        share=torch.from_numpy(share[clients]).to(x),
        objective=torch.from_numpy(objective[clients]).to(x),
        population=len(share),
        steps=assignment.local.steps[:, 0],
        normaliser=assignment.local.normaliser[:, 0],
        order=order,
        losses=losses,
        models=None if assignment.models is None else torch.from_numpy(assignment.models).to(x.device),
    )


def _move(server: ServerState, links: Links, aggregate: Aggregate, factor: float) -> ServerState:
    """Return the server after its step.

    `factor` multiplies x itself before the direction is added.
    """
    direction = aggregate.direction
    if factor != 1.0:
        direction = direction + (factor - 1.0) * server.broadcast
    move, optimiser = links.setting.algorithm.server.step(direction, server.optimiser)
    residual = server.residual
    if server.models_compressed:
        move, residual = links.down(move, residual)
    return replace(
        server,
        broadcast=server.broadcast + move,
        residual=residual,
        optimiser=optimiser,
        aggregator_state=aggregate.aggregator_state,
    )


class TrainedRound(NamedTuple):
    """Result of the training in one round of one run."""

    result: Result | None = None
    """None if no client reached the server."""
    seconds: float = 0.0
    """The run's share of the time, by its local steps."""
    together: int = 1
    """How many runs the engine was given, this one among them."""


def train_cohorts(rounds: Sequence[PendingRound]) -> list[TrainedRound]:
    """Train together the rounds that use the same engine; results are in the order of `rounds`."""
    trained = [TrainedRound()] * len(rounds)
    wanted: dict[Engine, list[tuple[int, Job]]] = {}
    for index, opened in enumerate(rounds):
        if (job := opened.job) is not None:
            wanted.setdefault(opened.setting.engine, []).append((index, job))
    for engine, members in wanted.items():
        indices, jobs = zip(*members, strict=True)
        for index, result in zip(indices, _train(engine, jobs), strict=True):
            trained[index] = result
    return trained


def _train(engine: Engine, jobs: Sequence[Job]) -> list[TrainedRound]:
    began = time.perf_counter()
    results = engine(jobs)
    seconds, steps = time.perf_counter() - began, [int(job.work.steps.sum()) for job in jobs]
    return [
        TrainedRound(result, seconds * own / sum(steps), len(jobs))
        for result, own in zip(results, steps, strict=True)
    ]
