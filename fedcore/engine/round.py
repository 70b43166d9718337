"""One communication round: draw, broadcast, train, upload, aggregate."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedcore.core import Cohort, Combined, Local, Vectors
from fedcore.data.plan import Work, gradient_noise, mini_batches, viewed
from fedcore.engine.assignment import Assignment, Ids
from fedcore.engine.clients import ClientTable
from fedcore.engine.links import Links, gather
from fedcore.engine.muster import muster
from fedcore.engine.observation import Observation
from fedcore.engine.schedule import StepSizes, effort, step_sizes
from fedcore.engine.server import Server, Setting, client_vectors, start
from fedcore.engine.traffic import Traffic
from fedcore.systems.participation import Drawn, Floats, iterate_factor, weights

__all__ = ["Account", "Server", "Setting", "client_vectors", "play", "start"]


@dataclass(frozen=True, slots=True)
class Account:
    """What a round cost: the steps of the clients that reached the server, and bytes in both directions."""

    local_steps: int
    bytes_up: int
    bytes_down: int
    simulated_seconds: float | None = None
    """What it took on the simulated clock, if there is one."""
    observation: Observation | None = None
    """What may be measured of it; None where no client's work arrived."""


def play(setting: Setting, server: Server, table: ClientTable, traffic: Traffic, round: int) -> tuple[Server, Account]:
    """Round `round`, counted from 1; `table` and `traffic` change in place. One that nobody reaches leaves the server as it is."""
    mustered = muster(setting, traffic, round)
    count = len(mustered.arrived.clients)
    if not count:
        return server, Account(0, 0, mustered.bytes_down, mustered.seconds)
    rule = setting.algorithm.rule.tuned(server.tuning)
    setting = replace(setting, algorithm=replace(setting.algorithm, rule=rule))
    weight = weights(setting.spec.participation, mustered.arrived, setting.problem.share, setting.spec.algorithm.weighting)
    server, observed = _train(setting, server, table, _Cast(mustered.arrived, mustered.work, weight, round))
    server = _adapted(setting, server)
    exchange_up, exchange_down = traffic.exchange(count, round)
    return server, Account(
        local_steps=int(observed.assignment.steps.sum()),
        bytes_up=traffic.up(count) + exchange_up,
        bytes_down=mustered.bytes_down + exchange_down + traffic.settle(mustered.arrived.clients, round),
        simulated_seconds=mustered.seconds,
        observation=observed,
    )


def _adapted(setting: Setting, server: Server) -> Server:
    """The server after the rule has looked at the training loss of its new model, if it wants to."""
    if not server.tuning:
        return server
    loss = setting.problem.evaluate(server.x, {"train_loss"})["train_loss"]
    assert isinstance(loss, float)
    return replace(server, tuning=setting.algorithm.rule.adapt(server.tuning, loss))


@dataclass(frozen=True, slots=True)
class _Cast:
    """Who reaches the server in a round, with what work and what weights."""

    arrived: Drawn
    work: list[Work]
    weights: Floats
    round: int


def _train(setting: Setting, server: Server, table: ClientTable, cast: _Cast) -> tuple[Server, Observation]:
    """Everything between the draw and the accounts."""
    algorithm, clients, share = setting.algorithm, cast.arrived.clients, setting.problem.share
    memory, links = table.gather(clients), Links(setting, clients, cast.round)
    assignment = _assign(setting, server, cast, memory)
    cohort = _cohort(cast, assignment, share)
    kept: Vectors = {}
    if algorithm.rule.gathers():
        assert assignment.local.anchor is not None
        gathered, kept, residual = gather(links, assignment.local.anchor, cohort.weights, memory, server.residual)
        server = replace(server, residual=residual)
        assignment = replace(assignment, local=replace(assignment.local, gathered=gathered))
    upload = setting.mapper(algorithm, setting.problem, assignment)
    deltas = upload.delta
    if server.models_compressed:
        deltas, kept = links.up(deltas, memory)
    combined = algorithm.aggregator.combine(deltas, cohort, server.book)
    shared = algorithm.rule.absorb(server.shared, upload.shared, cohort)
    observed = Observation(algorithm, assignment, upload.delta, cohort, combined)
    factor = iterate_factor(setting.spec.participation, cast.weights)
    server = replace(_move(server, links, combined, factor), shared=shared, clock=server.clock + int(assignment.steps.max()))
    table.scatter(clients, {**algorithm.rule.settle(upload, server.broadcast, assignment.local), **kept})
    return server, observed


def _assign(setting: Setting, server: Server, cast: _Cast, memory: Vectors) -> Assignment:
    spec, seed, problem, round = setting.spec, setting.seed, setting.problem, cast.round
    sizes = step_sizes(spec.local, spec.rounds, round, server.clock)
    steps = np.array([item.steps for item in cast.work], np.int64)
    pairs = list(zip(cast.arrived.clients.tolist(), cast.work, strict=True))
    noise = problem.gradient_noise
    return Assignment(
        clients=cast.arrived.clients,
        steps=steps,
        batches=tuple(_batches(setting, round, client, item) for client, item in pairs),
        noise=tuple(gradient_noise(seed, round, client, item.steps, problem.dim, noise) for client, item in pairs) if noise else None,
        sizes=sizes,
        local=_local(setting, server, cast.arrived.clients, memory, sizes, steps),
    )


def _batches(setting: Setting, round: int, client: int, work: Work) -> Ids:
    samples = int(setting.problem.sizes[client])
    batches = mini_batches(setting.seed, round, client, samples, work)
    return viewed(batches, samples, setting.problem.views, setting.seed, round, client)


def _local(setting: Setting, server: Server, clients: Ids, memory: Vectors, sizes: StepSizes, steps: Ids) -> Local:
    x, rule, problem = server.broadcast, setting.algorithm.rule, setting.problem
    spent = effort(rule, setting.algorithm.solver, sizes, steps)
    return Local(
        x=x,
        shared=server.shared,
        memory={name: memory[name] for name in rule.memory()},
        anchor=problem.client_gradients(x, clients) if rule.needs_anchor() else None,
        gathered=None,
        steps=torch.from_numpy(steps[:, None]).to(x),
        effort=torch.from_numpy(spent[:, None]).to(x),
        lr=sizes.first,
    )


def _cohort(cast: _Cast, assignment: Assignment, share: Floats) -> Cohort:
    x, clients = assignment.local.x, cast.arrived.clients
    return Cohort(
        clients=torch.from_numpy(clients).to(x.device),
        weights=torch.from_numpy(cast.weights).to(x),
        share=torch.from_numpy(share[clients]).to(x),
        population=len(share),
        steps=assignment.local.steps[:, 0],
        effort=assignment.local.effort[:, 0],
    )


def _move(server: Server, links: Links, combined: Combined, factor: float) -> Server:
    """The server after its step; `factor` is what x itself is multiplied by before the direction is added."""
    direction = combined.direction
    if factor != 1.0:
        direction = direction + (factor - 1.0) * server.broadcast
    move, optimiser = links.setting.algorithm.server.step(direction, server.optimiser)
    residual = server.residual
    if server.models_compressed:
        move, residual = links.down(move, residual)
    return replace(server, broadcast=server.broadcast + move, residual=residual, optimiser=optimiser, book=combined.book)
