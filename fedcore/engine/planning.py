"""What the clients that reach the server are to do in a round, and what they know while they do it."""

import numpy as np
import torch

from fedcore.core import Local, Vectors
from fedcore.data.plan import Work, gradient_noise, mini_batches, viewed
from fedcore.engine.assignment import Assignment, Ids
from fedcore.engine.muster import Muster
from fedcore.engine.schedule import StepSizes, effort, step_sizes
from fedcore.engine.server import Server, Setting


def assign(setting: Setting, server: Server, mustered: Muster, memory: Vectors, round: int) -> Assignment:
    """Before any exchange of gradients; `memory` [M, D] each is what the clients kept."""
    spec, seed, problem, clients = setting.spec, setting.seed, setting.problem, mustered.arrived.clients
    sizes = step_sizes(spec.local, spec.rounds, round, server.clock)
    steps = np.array([item.steps for item in mustered.work], np.int64)
    pairs = list(zip(clients.tolist(), mustered.work, strict=True))
    noise = problem.gradient_noise
    return Assignment(
        clients=clients,
        steps=steps,
        batches=tuple(_batches(setting, round, client, item) for client, item in pairs),
        noise=tuple(gradient_noise(seed, round, client, item.steps, problem.dim, noise) for client, item in pairs) if noise else None,
        sizes=sizes,
        local=_local(setting, server, clients, memory, sizes, steps),
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
