"""The preparation of a round: memory, mini-batches, step sizes and contexts of its clients, and the cohort
as the server sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedcore.core import ClientContext, Cohort, Streams
from fedcore.data.plan import augmented_batches, gradient_noise
from fedcore.engine.assignment import CohortWork
from fedcore.engine.local_solver import normaliser
from fedcore.engine.model_choice import choose_models, full_gradients
from fedcore.engine.network_state import bind_personal, personal_statistics
from fedcore.engine.stages.base import CommonStart, Flow, RoundStage, RoundState
from fedcore.random import generator
from fedcore.systems.cohorts import objective_weights

if TYPE_CHECKING:
    from torch import Tensor

    from fedcore.core import Vectors
    from fedcore.engine.assignment import Ids
    from fedcore.engine.server import RunContext, ServerState
    from fedcore.solvers.schedules import StepSizes


class Prepare(RoundStage):
    """Gather the clients' memory and give each its work; clients choose among several models."""

    name = "prepare"

    def play(self, state: RoundState, flow: Flow) -> tuple[RoundState, Flow]:
        memory = state.table.gather(flow.clients)
        work = _together([_assign(state.server, flow, start, memory) for start in flow.starts])
        return state, replace(flow, memory=memory, work=work, cohort=_cohort(flow, work))


def _assign(server: ServerState, flow: Flow, start: CommonStart, memory: Vectors) -> CohortWork:
    """The work of the clients of one start, before any exchange of gradients; `memory` [M, *] each is that
    of the whole cohort.
    """
    assert flow.selected is not None
    context, rows = flow.context, start.rows
    spec, seed, problem, clients = context.spec, context.seed, context.problem, flow.clients[rows]
    chosen = choose_models(problem, start.model, clients)
    index = torch.from_numpy(rows).to(chosen.x.device)
    sizes = spec.local.step_sizes(spec.rounds, flow.number, server.clock)
    work = [flow.selected.work[row] for row in rows.tolist()]
    steps = np.array([item.steps for item in work], np.int64)
    noise, draws = problem.gradient_noise, "random" in context.algorithm.rule.needs()
    held = {name: vectors[index] for name, vectors in memory.items()}
    return CohortWork(
        clients=clients,
        steps=steps,
        batches=augmented_batches(seed, start.round, clients, problem.sizes[clients], work, problem.views),
        noise=tuple(
            gradient_noise(seed, start.round, *pair, problem.dim, noise)
            for pair in zip(clients.tolist(), steps.tolist(), strict=True)
        )
        if noise
        else None,
        sizes=sizes,
        local=replace(
            _context(context, chosen.x, server, clients, held, sizes, steps),
            streams=Streams(seed, np.full_like(clients, start.round), clients) if draws else None,
        ),
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
        memory={name: memory[name] for name in setting.algorithm.memory()},
        full_gradient=None,
        mean_gradient=None,
        steps=torch.from_numpy(steps[:, None]).to(x),
        normaliser=torch.from_numpy(spent[:, None]).to(x),
        lr=sizes.first,
    )
    if models.full_gradient:
        own = personal_statistics(problem, models, server.statistics, memory, len(clients))
        at = models.personal_model(x, context.memory)
        gradients = full_gradients(bind_personal(problem, clients, own), at, clients)
        return replace(context, full_gradient=gradients)
    if "full_gradient" in rule.needs():
        return replace(context, full_gradient=full_gradients(problem, x, clients))
    return context


def _together(parts: Sequence[CohortWork]) -> CohortWork:
    """The clients of all `parts`, ascending, each with the model it started from in its row."""
    if len(parts) == 1:
        return parts[0]
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
        streams=Streams.together(one.streams for one in contexts),
    )
    batches = [batch for part in parts for batch in part.batches]
    noise = [drawn for part in parts for drawn in part.noise or ()]
    return replace(
        parts[0],
        clients=np.concatenate([part.clients for part in parts])[order],
        steps=np.concatenate([part.steps for part in parts])[order],
        batches=tuple(batches[row] for row in order),
        noise=tuple(noise[row] for row in order) if noise else None,
        local=local if local.streams is None else replace(local, streams=local.streams.take(rows)),
    )


def _cohort(flow: Flow, work: CohortWork) -> Cohort:
    """The clients of the round with their weights, as aggregators see them."""
    context, x, clients = flow.context, work.local.x, work.clients
    spec, share, needs = context.spec, context.problem.share, context.algorithm.aggregator.needs()
    objective = objective_weights(spec.participation, share, spec.algorithm.weighting)
    order = losses = None
    if "order" in needs:
        drawn = generator(context.seed, "order of the cohort", flow.number).permutation(len(clients))
        order = torch.from_numpy(drawn).to(x.device)
    if "losses" in needs:
        losses = torch.from_numpy(context.problem.client_losses(x, clients)).to(x)
    assert flow.weights is not None
    return Cohort(
        clients=torch.from_numpy(clients).to(x.device),
        weights=torch.from_numpy(flow.weights).to(x),
        share=torch.from_numpy(share[clients]).to(x),
        objective=torch.from_numpy(objective[clients]).to(x),
        population=len(share),
        steps=work.local.steps[:, 0],
        normaliser=work.local.normaliser[:, 0],
        order=order,
        losses=losses,
        models=None if work.models is None else torch.from_numpy(work.models).to(x.device),
    )
