"""Select and broadcast of an asynchronous run: clients or tiers start and arrive by the event queue, and
clients that arrived are trained together, each from the model of its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedcore.engine.event_queue import EventQueue, Flight, Planned, await_arrivals, await_tier
from fedcore.engine.stages.base import CommonStart, Flow, RoundStage, RoundState
from fedcore.engine.tiers import Tiers
from fedcore.systems.asynchrony import ClientsAtATime, FedAT
from fedcore.systems.availability import TraceAvailable
from fedcore.systems.cohorts import Drawn, draw, weights
from fedcore.systems.selection import SelectedCohort
from fedcore.systems.timing import RoundTiming, estimate_timing, speed_of
from fedcore.systems.work import plan_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from fedcore.engine.assignment import Ids
    from fedcore.engine.event_queue import Arrivals
    from fedcore.engine.server import RunContext
    from fedcore.systems.traffic import Traffic

    Floats = NDArray[np.float64]


class AwaitArrivals(RoundStage):
    """Start clients, and wait for those that make a step of the server. The queue is the stage's own state.

    A client draws its work and its mini-batches with the number of the step in which it started, so that a
    run without staleness is the synchronous one.
    """

    name = "arrivals"

    def start(self, context: RunContext) -> EventQueue:
        return EventQueue()

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        context, server, traffic, number = flow.context, state.server, state.traffic, flow.number
        asynchrony = context.spec.asynchrony
        assert asynchrony is not None
        received = [0]

        def plan(started: Ids) -> Planned:
            bytes_down = traffic.down(started, number)
            received.append(int(bytes_down.sum()))
            return _plan(context, traffic, started, bytes_down, number)

        own: EventQueue = server.own[self.name]
        queue = own.with_version(number - 1, server.broadcast, server.statistics)
        arrived = _await(flow, state, queue, plan)
        # By client, as in a synchronous round, whose sums then have the same bits.
        flights = sorted(arrived.flights, key=lambda flight: flight.client)
        staleness = np.array([number - 1 - flight.version for flight in flights], np.int64)
        drawn = _drawn(flights)
        selected = SelectedCohort(
            arrived=drawn,
            drawn=len(flights),
            work=[flight.work for flight in flights],
            bytes_up=0,
            bytes_down=sum(received),
            seconds=arrived.seconds,
            timing=RoundTiming(arrived.busy, arrived.places, staleness),
        )
        weight = asynchrony.weights(_weights(context, drawn), staleness)
        versions = np.array([flight.version for flight in flights])
        starts = [
            CommonStart(np.flatnonzero(versions == version), queue.models[version], version + 1)
            for version in np.unique(versions).tolist()
        ]
        later = replace(server, seconds=server.seconds + arrived.seconds)
        return replace(state, server=later.with_own(self.name, arrived.queue.without_unused())), replace(
            flow,
            selected=selected,
            weights=weight,
            starts=starts,
            statistics=_statistics(queue, flights),
            paced=arrived.queue.tiers is None,
        )


class MixModels(RoundStage):
    """Mix the clients' models with the server's, or those of tiers with one another."""

    name = "mix"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        server, aggregate = state.server, flow.aggregate
        assert aggregate is not None
        queue: EventQueue = server.own[AwaitArrivals.name]
        if queue.tiers is None:
            mixed = replace(aggregate, direction=aggregate.direction + _offset(state, flow))
            return state, replace(flow, aggregate=mixed)
        tier = int(queue.tiers.members[flow.clients[0]])
        tiers = queue.tiers.ended(tier, aggregate.direction)
        mixed = replace(
            aggregate,
            direction=tiers.move(tier, aggregate.direction, server.x),
            coefficients=float(tiers.weights()[tier]) * aggregate.coefficients,
        )
        later = server.with_own(AwaitArrivals.name, replace(queue, tiers=tiers))
        return replace(state, server=later), replace(flow, aggregate=mixed)


class MixStatistics(RoundStage):
    """Mix the running statistics of tiers with one another."""

    name = "mix statistics"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        server = state.server
        queue: EventQueue = server.own[AwaitArrivals.name]
        if server.statistics is None or queue.tiers is None:
            return state, flow
        tier = int(queue.tiers.members[flow.clients[0]])
        tiers = queue.tiers.with_statistics(tier, server.statistics)
        later = replace(server, statistics=tiers.mixed_statistics())
        return replace(state, server=later.with_own(AwaitArrivals.name, replace(queue, tiers=tiers))), flow


def _await(flow: Flow, state: RoundState, queue: EventQueue, plan: Callable[[Ids], Planned]) -> Arrivals:
    """The arrivals that make a step, of clients or of a tier."""
    context, number, server = flow.context, flow.number, state.server
    asynchrony, share, seed = context.spec.asynchrony, context.problem.share, context.seed
    available = context.availability
    if isinstance(asynchrony, ClientsAtATime):
        return await_arrivals(queue, asynchrony, number - 1, len(share), seed, plan, available)
    assert isinstance(asynchrony, FedAT)
    tiers = queue.tiers or _form_tiers(context, state, asynchrony.tiers)
    queue = replace(queue, tiers=tiers)

    def draw_cohorts(idle: Sequence[int], seconds: float) -> Ids:
        cohorts = []
        for tier in idle:
            members = tiers.clients(tier)
            if available is not None:
                reachable = available.reachable_at(seconds, len(share), seed, number)
                members = members[reachable.has(members)]
            scheme = context.spec.participation
            cohorts.append(draw(scheme, share, seed, number, TraceAvailable(members)).clients)
        return np.concatenate(cohorts)

    # Those that can start at all, start from this model.
    queue = replace(queue, tiers=tiers.started(queue.idle_tiers(), server.x))
    wait = inf if available is None else available.empty_round_seconds()
    return await_tier(queue, number - 1, draw_cohorts, plan, wait)


def _form_tiers(context: RunContext, state: RoundState, count: int) -> Tiers:
    timing = estimate_timing(context.draws, state.traffic, 1, np.arange(len(context.problem.share)))
    return Tiers.by_latency(timing.total, count, state.server.x, state.server.statistics)


def _plan(context: RunContext, traffic: Traffic, clients: Ids, received: Ids, number: int) -> Planned:
    """The work of `clients` [M] that start in step `number` with `received` [M] bytes, and its duration."""
    systems = context.spec.systems
    work, _ = plan_work(context.spec.local, systems, context.problem.sizes, clients, context.seed, number)
    speed = speed_of(context.draws, clients, received, traffic.up(1), 1 + (received > 0))
    return Planned(work, speed.seconds(np.array([item.steps for item in work], np.int64)))


def _drawn(flights: Sequence[Flight]) -> Drawn:
    clients = np.array([flight.client for flight in flights], np.int64)
    return Drawn(clients, np.ones_like(clients))


def _weights(context: RunContext, arrived: Drawn) -> Floats:
    """[M] weights without regard to staleness, which sum to 1."""
    spec = context.spec
    assert spec.asynchrony is not None
    preferred = spec.algorithm.weighting or spec.asynchrony.weighting
    return weights(spec.participation, arrived, context.problem.share, preferred)


def _statistics(queue: EventQueue, flights: Sequence[Flight]) -> Tensor | None:
    """[M, S] the running statistics that the clients started with, if the server averages such."""
    if not queue.statistics:
        return None
    return torch.stack([queue.statistics[flight.version] for flight in flights])


def _offset(state: RoundState, flow: Flow) -> Tensor:
    """sum_i w_i (x_i - x) [D]: what turns the mean of changes y_i - x_i into that of y_i - x."""
    assert flow.work is not None
    assert flow.weights is not None
    starts = flow.work.local.x.expand(len(flow.weights), -1)
    return torch.from_numpy(flow.weights).to(starts) @ (starts - state.server.broadcast)
