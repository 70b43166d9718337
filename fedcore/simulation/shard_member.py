"""Part of a run whose rounds another process plays: it trains shards of their cohorts and scores models."""

from __future__ import annotations

from fedcore.core import ClientUpdate
from fedcore.engine.client_table import ClientTable
from fedcore.engine.engines import ENGINES
from fedcore.engine.network_state import bind_state
from fedcore.engine.server import client_vectors
from fedcore.engine.shard_messages import (
    SCORES,
    ShardMessage,
    keeps_memory,
    memory_after,
    message_of_result,
    scoring_of_message,
    shard_of_message,
)
from fedcore.engine.shards import train_shard
from fedcore.problems.supervised import SupervisedProblem
from fedcore.simulation.simulation import Simulation


class ShardMember:
    """Answers messages of the process that plays the rounds of a run."""

    def __init__(self, simulation: Simulation) -> None:
        """`simulation` is the same run before its first round; its state is neither used nor changed."""
        self._context, self._state = simulation.context, simulation.state
        algorithm, problem = self._context.algorithm, self._context.evaluated
        self._keeps = keeps_memory(algorithm)
        names = (*algorithm.rule.memory, *algorithm.models.memory) if self._keeps else ()
        vectors = client_vectors(algorithm, self._state.server.first_model)
        self._kept = ClientTable(
            {name: vectors[name] for name in names}, len(problem.share), self._context.client_memory
        )
        """Memory of the clients that were trained here. It has no more rows than the table of the other
        process, and the same limit in memory.
        """

    def answer(self, message: ShardMessage) -> ShardMessage:
        """Train the shard, or score the model, of a message.

        The memory of the clients trained here is kept, for their next shard.
        """
        context, device = self._context, self._state.server.x.device
        if (scoring := scoring_of_message(message, device)) is not None:
            problem = bind_state(context.evaluated, scoring.statistics, self._state.table)
            assert isinstance(problem, SupervisedProblem)
            return ShardMessage({}, {SCORES: problem.score(scoring.theta, scoring.batches)})
        shard = shard_of_message(message, context.algorithm, context.trained, device, self._kept)
        result = train_shard(ENGINES[message.header["engine"]], shard)
        if self._keeps and isinstance(result, ClientUpdate):
            self._kept.scatter(shard.work.clients, memory_after(shard, result))
        return message_of_result(result)
