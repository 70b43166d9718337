"""A step of the server in an asynchronous run, up to the training: clients or tiers start and
arrive by the event queue, and clients that arrived are trained together, each from the model of its
start.

The training and the rest of the step are the same as in a synchronous round.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import ClientContext, Vectors
from fedcore.engine.assignment import CohortWork, Ids, RoundTiming
from fedcore.engine.client_selection import SelectedCohort, assign_work, estimate_timing, speed_of
from fedcore.engine.client_table import ClientTable
from fedcore.engine.compressed_links import Links, Traffic
from fedcore.engine.event_queue import (
    Arrivals,
    EventQueue,
    Flight,
    Planned,
    await_arrivals,
    await_tier,
)
from fedcore.engine.network_state import bind_state
from fedcore.engine.round import CohortTraining, PendingRound, StaleStarts, cohort_of
from fedcore.engine.server import RunContext, ServerState
from fedcore.engine.tiers import Tiers
from fedcore.systems.asynchrony import ClientsAtATime, FedAT
from fedcore.systems.availability import TraceAvailable
from fedcore.systems.cohorts import Drawn, draw, weights
from fedcore.systems.work import plan_work

Floats = NDArray[np.float64]


def open_step(
    context: RunContext,
    server: ServerState,
    table: ClientTable,
    traffic: Traffic,
    number: int,
    *,
    each: bool = True,
) -> PendingRound:
    """Play step `number` of the server, counted from 1, up to the training; `traffic` changes in
    place.

    A client draws its work and its mini-batches with the number of the step in which it started, so
    that a run without staleness is the synchronous one. `each` asks for the delta of each client; it
    changes no bit of the result.
    """
    asynchrony = context.spec.asynchrony
    assert asynchrony is not None
    context = replace(context, problem=bind_state(context.problem, server.statistics, table))
    context = replace(context, algorithm=context.algorithm.tuned(server.adaptive_parameters))
    received = [0]

    def plan(started: Ids) -> Planned:
        bytes_down = traffic.down(started, number)
        received.append(int(bytes_down.sum()))
        return _plan(context, traffic, started, bytes_down, number)

    queue = (server.queue or EventQueue()).with_version(number - 1, server.broadcast, server.statistics)
    arrived = _await(context, server, queue, traffic, number, plan)
    tiers = arrived.queue.tiers
    # By client, as in a synchronous round, whose sums then have the same bits.
    flights = sorted(arrived.flights, key=lambda flight: flight.client)
    staleness = np.array([number - 1 - flight.version for flight in flights], np.int64)
    selected = SelectedCohort(
        arrived=_drawn(flights),
        drawn=len(flights),
        work=[flight.work for flight in flights],
        bytes_up=0,
        bytes_down=sum(received),
        seconds=arrived.seconds,
        timing=RoundTiming(arrived.busy, arrived.places, staleness),
    )
    memory = table.gather(selected.arrived.clients)
    work = _assign(context, server, flights, queue, memory, number)
    weight = asynchrony.weights(_weights(context, selected.arrived), staleness)
    training = CohortTraining(
        work=work,
        cohort=cohort_of(context, work, weight, number),
        links=Links(context, selected.arrived.clients, number),
        memory=memory,
        kept={},
        factor=1.0,
        stale=StaleStarts(
            rounds=[flight.version + 1 for flight in flights],
            statistics=_statistics(queue, flights),
            offset=_offset(work, weight, server) if asynchrony.mixes_models and tiers is None else None,
            tier=None if tiers is None else int(tiers.members[flights[0].client]),
        ),
    )
    server = replace(server, queue=arrived.queue.without_unused())
    return PendingRound(context, number, server, selected, training, each)


def _await(
    context: RunContext,
    server: ServerState,
    queue: EventQueue,
    traffic: Traffic,
    number: int,
    plan: Callable[[Ids], Planned],
) -> Arrivals:
    """The arrivals that make step `number`, of clients or of a tier."""
    asynchrony, share, seed = context.spec.asynchrony, context.problem.share, context.seed
    available = context.availability
    if isinstance(asynchrony, ClientsAtATime):
        return await_arrivals(queue, asynchrony, number - 1, len(share), seed, plan, available)
    assert isinstance(asynchrony, FedAT)
    tiers = queue.tiers or _form_tiers(context, server, traffic, asynchrony.tiers)
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


def _form_tiers(context: RunContext, server: ServerState, traffic: Traffic, count: int) -> Tiers:
    timing = estimate_timing(context, traffic, 1, np.arange(len(context.problem.share)))
    return Tiers.by_latency(timing.total, count, server.x, server.statistics)


def _plan(context: RunContext, traffic: Traffic, clients: Ids, received: Ids, number: int) -> Planned:
    """The work of `clients` [M] that start in step `number` with `received` [M] bytes, and its duration."""
    systems = context.spec.systems
    work, _ = plan_work(context.spec.local, systems, context.problem.sizes, clients, context.seed, number)
    speed = speed_of(context, clients, received, traffic.up(1), 1 + (received > 0))
    return Planned(work, speed.seconds(np.array([item.steps for item in work], np.int64)))


def _drawn(flights: Sequence[Flight]) -> Drawn:
    clients = np.array([flight.client for flight in flights], np.int64)
    return Drawn(clients, np.ones_like(clients))


def _assign(
    context: RunContext,
    server: ServerState,
    flights: Sequence[Flight],
    queue: EventQueue,
    memory: Vectors,
    number: int,
) -> CohortWork:
    """The work of all that arrived, of `memory` [M, D] each: that of each version by itself, put
    together by client.
    """
    versions = np.array([flight.version for flight in flights])
    parts = []
    for version in np.unique(versions).tolist():
        rows = np.flatnonzero(versions == version)
        members = [flights[row] for row in rows.tolist()]
        selected = SelectedCohort(
            _drawn(members), len(members), [flight.work for flight in members], 0, 0, None
        )
        held = {name: vectors[torch.from_numpy(rows).to(vectors.device)] for name, vectors in memory.items()}
        start = replace(server, broadcast=queue.models[version])
        parts.append(assign_work(context, start, selected, held, version + 1, scheduled=number))
    return parts[0] if len(parts) == 1 else _together(parts)


def _together(parts: Sequence[CohortWork]) -> CohortWork:
    """The clients of all `parts`, ascending, each with the model it started from in its row."""
    order = np.argsort(np.concatenate([part.clients for part in parts]))
    rows = torch.from_numpy(order).to(parts[0].local.x.device)
    contexts = [part.local for part in parts]
    starts = [part.local.x.expand(len(part.clients), -1) for part in parts]
    local = ClientContext(
        x=torch.cat(starts)[rows],
        shared={},
        memory={name: torch.cat([one.memory[name] for one in contexts])[rows] for name in contexts[0].memory},
        full_gradient=None,
        mean_gradient=None,
        steps=torch.cat([one.steps for one in contexts])[rows],
        normaliser=torch.cat([one.normaliser for one in contexts])[rows],
        lr=contexts[0].lr,
    )
    batches = [batch for part in parts for batch in part.batches]
    noise = [drawn for part in parts for drawn in part.noise or ()]
    return replace(
        parts[0],
        clients=np.concatenate([part.clients for part in parts])[order],
        steps=np.concatenate([part.steps for part in parts])[order],
        batches=tuple(batches[row] for row in order),
        noise=tuple(noise[row] for row in order) if noise else None,
        local=local,
    )


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


def _offset(work: CohortWork, weight: Floats, server: ServerState) -> Tensor:
    """sum_i w_i (x_i - x) [D]: what turns the mean of changes y_i - x_i into that of y_i - x."""
    starts = work.local.x.expand(len(weight), -1)
    return torch.from_numpy(weight).to(starts) @ (starts - server.broadcast)
