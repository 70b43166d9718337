"""State of networks with dropout or batch norm over a round: keys of the masks, running statistics,
and parameters that clients keep to themselves.

The server averages running statistics with the aggregation weights, beside the parameters: they go
through no rule, compressor or server optimiser. Those of personal layers and of second models stay
with the client, as their parameters do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedcore.core import PREVIOUS, Algorithm, ClientUpdate, Cohort, Models, Vectors
from fedcore.engine.assignment import CohortWork, Ids
from fedcore.engine.client_table import ClientTable
from fedcore.problems import TrainingProblem
from fedcore.problems.network import PRIVATE, STATISTICS, NetworkProblem
from fedcore.problems.passes import ForwardPasses, PassKey
from fedcore.problems.transformed import Transformed

PERSONAL = "personal batch-norm statistics"
"""Vector that clients keep where the server averages running statistics, and some are personal."""


def network_of(problem: TrainingProblem) -> NetworkProblem | None:
    """The network that a problem trains, if it has a state; else None."""
    inner = problem.problem if isinstance(problem, Transformed) else problem
    return inner if isinstance(inner, NetworkProblem) else None


def initial_statistics(problem: TrainingProblem) -> Tensor | None:
    """[S] the running statistics that the server averages; None if it averages none."""
    network = network_of(problem)
    return None if network is None or network.keeps_own else network.statistics


def keeps_own(problem: TrainingProblem) -> bool:
    """True if the server has no batch norm, since each client keeps its own (`local`)."""
    network = network_of(problem)
    return network is not None and network.keeps_own


def own_vectors(problem: TrainingProblem, algorithm: Algorithm) -> Mapping[str, Tensor]:
    """Initial tensors that each client keeps: its running statistics [1, S] and private parameters [A]; or
    where the server averages statistics, those [m, S] of the models that it trains, if some are personal.
    For an objective that reads it, the model [P + S] that its last round ended with.
    """
    network = network_of(problem)
    if network is None:
        return {}
    kept = {}
    if PREVIOUS in algorithm.memory():
        kept[PREVIOUS] = torch.cat([network.initial(), network.private, network.statistics])
    if network.keeps_own:
        return {STATISTICS: network.statistics[None], PRIVATE: network.private, **kept}
    if _personal(network, algorithm.models).any():
        kept[PERSONAL] = network.statistics.repeat(algorithm.models.trained, 1)
    return kept


def _personal(network: NetworkProblem, models: Models) -> Tensor:
    """[m, S] true for the running statistics that stay with the client, of m models that it trains: the
    statistics of personal layers of the first model, and all statistics of the others.
    """
    parameters = models.stays
    if parameters is None:
        parameters = torch.zeros(network.dim, dtype=torch.bool, device=network.statistics.device)
    first = network.statistics_of(parameters)
    return torch.stack([first, *[torch.ones_like(first)] * (models.trained - 1)])


def statistics_sent(problem: TrainingProblem, models: Models) -> int:
    """How many running statistics go with a model in either direction."""
    network = network_of(problem)
    if network is None or network.keeps_own:
        return 0
    return int((~_personal(network, models)).sum())


def bind_state(problem: TrainingProblem, statistics: Tensor | None, table: ClientTable) -> TrainingProblem:
    """The problem with the state of a round for evaluation and full gradients."""
    network = network_of(problem)
    if network is None:
        return problem
    bound = network.bound(statistics, partial(_own, table) if network.keeps_own else None)
    return problem.bound(bound) if isinstance(problem, Transformed) else bound


def _own(table: ClientTable, clients: Ids) -> Mapping[str, Tensor]:
    own = table.gather(clients, (STATISTICS, PRIVATE))
    return {**own, STATISTICS: own[STATISTICS][:, 0]}


def _statistics_of_clients(
    network: NetworkProblem, models: Models, statistics: Tensor, memory: Vectors, count: int
) -> Tensor:
    """[M, m, S] the running statistics of the m models of M = `count` clients with this `memory`: the
    server's `statistics`, [S] or [M, S], and what is personal.
    """
    server = statistics.expand(count, -1)[:, None].expand(-1, models.trained, -1)
    return server if PERSONAL not in memory else memory[PERSONAL].where(_personal(network, models), server)


def personal_statistics(
    problem: TrainingProblem, models: Models, statistics: Tensor | None, memory: Vectors, count: int
) -> Tensor | None:
    """[M, S] the running statistics of the personal models of M = `count` clients with this `memory`,
    where the server averages `statistics` [S]; None where it does not.
    """
    network = network_of(problem)
    if network is None or statistics is None:
        return None
    return _statistics_of_clients(network, models, statistics, memory, count)[:, -1]


def bind_personal(problem: TrainingProblem, clients: Ids, statistics: Tensor | None) -> TrainingProblem:
    """The problem with the running `statistics` [M, S] of the personal models of `clients` [M],
    ascending, for their evaluation and full gradients; the problem itself if `statistics` is None.
    """
    network = network_of(problem)
    if network is None or statistics is None:
        return problem
    rows, private = statistics, statistics.new_zeros(len(statistics), 0)

    def own(chosen: Ids) -> Mapping[str, Tensor]:
        places = torch.from_numpy(np.searchsorted(clients, chosen)).to(rows.device)
        return {STATISTICS: rows[places], PRIVATE: private[places]}

    bound = network.bound(None, own)
    return problem.bound(bound) if isinstance(problem, Transformed) else bound


def with_passes(
    work: CohortWork,
    problem: TrainingProblem,
    models: Models,
    statistics: Tensor | None,
    memory: Vectors,
    seed: int,
    rounds: Sequence[int],
) -> CohortWork:
    """`work` with the state that the clients' passes begin with, and with what each client trains:
    x [D] and its private parameters [A], as one vector.

    `statistics` are [S], or [M, S] if clients start with different ones; masks are drawn for the
    clients' `rounds` [M].
    """
    network = network_of(problem)
    if network is None:
        return work
    keys = [PassKey(seed, round, client) for round, client in zip(rounds, work.clients.tolist(), strict=True)]
    if not network.keeps_own:
        assert statistics is not None
        own = _statistics_of_clients(network, models, statistics, memory, len(keys))
        return replace(work, passes=ForwardPasses(keys, own))
    start = torch.cat([work.local.x.expand(len(keys), -1), memory[PRIVATE]], 1)
    return replace(work, passes=ForwardPasses(keys, memory[STATISTICS]), local=replace(work.local, x=start))


def with_view(work: CohortWork, problem: TrainingProblem, algorithm: Algorithm) -> CohortWork:
    """`work` with what the algorithm's objective sees of each client, if it has one."""
    if algorithm.objective is None:
        return work
    network, passes = network_of(problem), work.passes
    assert network is not None
    assert passes is not None
    previous = work.local.memory.get(PREVIOUS)
    view = network.view(work.clients, work.local.x, passes.statistics, previous, work.local.shared)
    return replace(work, passes=replace(passes, view=view))


def without_state(update: ClientUpdate) -> tuple[ClientUpdate, Vectors]:
    """The update without the state of networks, and this state: running statistics and private parameters."""
    state = {name: update.memory[name] for name in (STATISTICS, PRIVATE) if name in update.memory}
    if not state:
        return update, {}
    memory = {name: value for name, value in update.memory.items() if name not in state}
    return replace(update, memory=memory), state


def split_statistics(
    problem: TrainingProblem, models: Models, before: Tensor, trained: Tensor, memory: Vectors
) -> tuple[Tensor, Vectors]:
    """Split the running statistics [M, m, S] that clients `trained` into the part that they send,
    [M, S], and the part that they keep. Personal statistics are sent as they were on the server
    `before` [S].
    """
    if PERSONAL not in memory:
        return trained[:, 0], {}
    network = network_of(problem)
    assert network is not None
    return before.where(_personal(network, models)[0], trained[:, 0]), {PERSONAL: trained}


def mean_statistics(before: Tensor, statistics: Tensor, cohort: Cohort) -> Tensor:
    """sum_i w_i s_i / sum_i w_i [S] of the clients' running `statistics` [M, S]; `before` if all
    weights are zero.
    """
    return torch.where(cohort.weights.sum() == 0, before, cohort.mean(statistics))
