"""What the clients that reach the server are to do in a round, and what they know while they do it."""

import numpy as np
import torch

from fedcore.core import Local, Vectors
from fedcore.data.plan import cohort_batches, gradient_noise, viewed
from fedcore.engine.assignment import Assignment, Ids
from fedcore.engine.muster import Muster
from fedcore.engine.schedule import StepSizes, effort, step_sizes
from fedcore.engine.server import Server, Setting


def assign(setting: Setting, server: Server, mustered: Muster, memory: Vectors, round: int) -> Assignment:
    """Before any exchange of gradients; `memory` [M, D] each is what the clients kept."""
    spec, seed, problem, clients = setting.spec, setting.seed, setting.problem, mustered.arrived.clients
    sizes = step_sizes(spec.local, spec.rounds, round, server.clock)
    steps = np.array([item.steps for item in mustered.work], np.int64)
    noise = problem.gradient_noise
    return Assignment(
        clients=clients,
        steps=steps,
        batches=_batches(setting, mustered, round),
        noise=tuple(gradient_noise(seed, round, *pair, problem.dim, noise) for pair in zip(clients.tolist(), steps.tolist(), strict=True))
        if noise
        else None,
        sizes=sizes,
        local=_local(setting, server, clients, memory, sizes, steps),
    )


def _batches(setting: Setting, mustered: Muster, round: int) -> tuple[Ids, ...]:
    seed, views, clients = setting.seed, setting.problem.views, mustered.arrived.clients
    samples = setting.problem.sizes[clients]
    batches = cohort_batches(seed, round, clients, samples, mustered.work)
    if views == 1:
        return batches
    members = zip(batches, samples.tolist(), clients.tolist(), strict=True)
    return tuple(viewed(batch, count, views, seed, round, client) for batch, count, client in members)


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
