"""One communication round: draw, broadcast, train, upload, aggregate."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedcore.core import Algorithm, Cohort, Upload, Vectors
from fedcore.data.plan import Work, gradient_noise, mini_batches
from fedcore.engine.assignment import Assignment, Ids
from fedcore.engine.clients import ClientTable
from fedcore.engine.mappers import Mapper
from fedcore.engine.messages import lots, send
from fedcore.engine.observation import Observation
from fedcore.engine.schedule import effort, step_sizes
from fedcore.engine.traffic import Traffic
from fedcore.problems import Problem
from fedcore.spec import ExperimentSpec
from fedcore.systems.participation import Drawn, Floats, draw, iterate_factor, weights
from fedcore.systems.work import plan_work

RESIDUAL = "uplink residual"
UPLINK, DOWNLINK = "uplink compression", "downlink compression"
"""Purposes of randomness."""
SERVER = np.array([0])
"""Who draws for a message of the server."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same over the rounds of a run."""

    spec: ExperimentSpec
    seed: int
    algorithm: Algorithm
    problem: Problem
    mapper: Mapper


@dataclass(frozen=True, slots=True)
class Server:
    """The server's state between rounds."""

    broadcast: Tensor
    """[D] the model as the clients know it."""
    residual: Tensor
    """[D] what a compressed downlink with error feedback has yet to send; broadcast + residual is x."""
    optimiser: Vectors
    """[D] each: the server optimiser's state."""
    shared: Vectors
    """[D] each: what the rule broadcasts beside x."""
    clock: int = 0
    """Local steps of all rounds so far, each round as long as its longest client."""

    @property
    def x(self) -> Tensor:
        """[D] the server's own model."""
        return self.broadcast + self.residual


@dataclass(frozen=True, slots=True)
class Account:
    """What a round cost: the steps of the clients that reached the server, and bytes in both directions."""

    local_steps: int
    bytes_up: int
    bytes_down: int
    observation: Observation | None = None
    """What may be measured of it; None where no client's work arrived."""


def start(setting: Setting) -> Server:
    """The server before the first round."""
    x = setting.problem.initial()
    return Server(
        broadcast=x,
        residual=torch.zeros_like(x),
        optimiser={name: torch.full_like(x, value) for name, value in setting.algorithm.server.start().items()},
        shared={name: torch.zeros_like(x) for name in setting.algorithm.rule.shared()},
    )


def client_vectors(algorithm: Algorithm) -> tuple[str, ...]:
    """Names of the vectors kept per client: the rule's memory, and the residual of a compressed uplink."""
    return (*algorithm.rule.memory(), *((RESIDUAL,) if algorithm.uplink.error_feedback else ()))


def play(setting: Setting, server: Server, table: ClientTable, traffic: Traffic, round: int) -> tuple[Server, Account]:
    """Round `round`, counted from 1; `table` and `traffic` change in place."""
    spec, share = setting.spec, setting.problem.share
    drawn = draw(spec.participation, share, setting.seed, round)
    work, arrives = plan_work(spec.local, spec.systems, setting.problem.sizes, drawn.clients, setting.seed, round)
    bytes_down = traffic.down(drawn.clients, round)
    arrived = drawn[arrives]
    if not len(arrived.clients):
        return server, Account(0, 0, bytes_down)
    memory = table.gather(arrived.clients)
    chosen = [item for item, kept in zip(work, arrives, strict=True) if kept]
    assignment = _assign(setting, server, arrived.clients, chosen, memory, round)
    upload = setting.mapper(setting.algorithm, setting.problem, assignment)
    deltas, residual = _send_up(setting, arrived.clients, upload.delta, memory, round)
    table.scatter(arrived.clients, {**upload.memory, **residual})
    scheme = spec.participation
    weight = weights(scheme, arrived, share, spec.algorithm.weighting)
    cohort = _cohort(arrived, assignment, weight, share)
    coefficients = setting.algorithm.aggregator.coefficients(deltas, cohort)
    observed = Observation(setting.algorithm, assignment, upload.delta, cohort, coefficients)
    server = _aggregate(setting, server, cohort, iterate_factor(scheme, weight), replace(upload, delta=deltas), round)
    return server, Account(int(assignment.steps.sum()), traffic.up(len(arrived.clients)), bytes_down, observed)


def _assign(setting: Setting, server: Server, clients: Ids, work: list[Work], memory: Vectors, round: int) -> Assignment:
    spec, seed, algorithm, problem = setting.spec, setting.seed, setting.algorithm, setting.problem
    sizes = step_sizes(spec.local, spec.rounds, round, server.clock)
    steps = np.array([item.steps for item in work], np.int64)
    pairs = list(zip(clients.tolist(), work, strict=True))
    noise = problem.gradient_noise
    return Assignment(
        clients=clients,
        steps=steps,
        batches=tuple(mini_batches(seed, round, client, int(problem.sizes[client]), item) for client, item in pairs),
        noise=tuple(gradient_noise(seed, round, client, item.steps, problem.dim, noise) for client, item in pairs) if noise else None,
        sizes=sizes,
        effort=effort(algorithm.rule, algorithm.solver, sizes, steps),
        x=server.broadcast,
        shared=server.shared,
        memory={name: memory[name] for name in algorithm.rule.memory()},
    )


def _send_up(setting: Setting, clients: Ids, deltas: Tensor, memory: Vectors, round: int) -> tuple[Tensor, Vectors]:
    """The deltas [M, D] as the server decodes them, and what error feedback keeps for the next message."""
    sent = send(setting.algorithm.uplink, deltas, memory.get(RESIDUAL), lots(setting.seed, UPLINK, round, clients))
    return sent.received, {} if sent.residual is None else {RESIDUAL: sent.residual}


def _cohort(arrived: Drawn, assignment: Assignment, weight: Floats, share: Floats) -> Cohort:
    like = assignment.x
    return Cohort(
        weights=torch.from_numpy(weight).to(like),
        share=torch.from_numpy(share[arrived.clients]).to(like),
        population=len(share),
        steps=torch.from_numpy(assignment.steps).to(like),
        effort=torch.from_numpy(assignment.effort).to(like),
    )


def _aggregate(setting: Setting, server: Server, cohort: Cohort, factor: float, upload: Upload, round: int) -> Server:
    """`factor` is what x itself is multiplied by before the direction is added."""
    algorithm = setting.algorithm
    direction = algorithm.aggregator.combine(upload.delta, cohort)
    if factor != 1.0:
        direction = direction + (factor - 1.0) * server.broadcast
    move, optimiser = algorithm.server.step(direction, server.optimiser)
    sent, residual = _send_down(setting, move, server.residual, round)
    return Server(
        broadcast=server.broadcast + sent,
        residual=residual,
        optimiser=optimiser,
        shared=algorithm.rule.absorb(server.shared, upload.shared, cohort),
        clock=server.clock + int(cohort.steps.max()),
    )


def _send_down(setting: Setting, move: Tensor, residual: Tensor, round: int) -> tuple[Tensor, Tensor]:
    """The change of x [D] as the clients decode it, and what error feedback keeps for the next message."""
    sent = send(setting.algorithm.downlink, move, residual, lots(setting.seed, DOWNLINK, round, SERVER))
    return sent.received, residual if sent.residual is None else sent.residual
