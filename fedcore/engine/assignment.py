"""The work handed to a cohort at the start of a round (model, steps, mini-batches, step sizes), and
the result that engines return for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import PREVIOUS, Aggregate, Algorithm, ClientContext, ClientUpdate, Cohort
from fedcore.problems import TrainingProblem
from fedcore.problems.network import STATISTICS
from fedcore.problems.passes import ForwardPasses
from fedcore.solvers.schedules import StepSizes
from fedcore.systems.timing import RoundTiming

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CohortWork:
    """One round's work of the M clients that will reach the server, ascending by client id."""

    clients: Ids
    """[M]."""
    steps: Ids
    """[M] tau_i."""
    batches: tuple[Ids, ...]
    """M arrays [tau_i, B_i] of local sample indices, -1 where the short last batch is padded."""
    noise: tuple[NDArray[np.float64], ...] | None
    """M arrays [tau_i, D] added to the gradients, if the problem asks for noise."""
    sizes: StepSizes
    local: ClientContext
    """The clients' contexts, each in its row; x is [D], or [M, D] if the clients start from models of
    their own, [M, m, D] where each trains m > 1.
    """
    passes: ForwardPasses | None = None
    """State of the clients' forward passes, of a network with dropout or batch norm."""
    models: Ids | None = None
    """[M] which of the server's models each client trains, if there are several."""

    def passes_of(self, row: int) -> ForwardPasses | None:
        """A copy of `passes` for one client."""
        return self.passes and self.passes.take([row])


@dataclass(frozen=True, slots=True)
class Job:
    """The training of one run's cohort in one round."""

    algorithm: Algorithm
    problem: TrainingProblem
    work: CohortWork
    sums: Tensor | None = None
    """[K, M] the weighted sums of the deltas that the aggregator wants, where clients send deltas
    as they are and nothing else.
    """
    each: bool = True
    """True if someone wants to see each delta."""
    memory_divisor: int = 1
    """Divides the number of clients trained at once, after an out-of-memory error."""


@dataclass(frozen=True, slots=True)
class AggregatedUpdate:
    """Result of a job with sums, from an engine that takes them while it trains."""

    sums: Tensor
    """[K, D]."""
    deltas: Tensor | None
    """[M, D]; None unless the job asks for each delta."""


Result = ClientUpdate | AggregatedUpdate
"""An upload has a row for each of the M clients, in the order of the assignment."""


class Engine(Protocol):
    """Trains the cohorts of several runs and returns a result for each job."""

    def __call__(self, jobs: Sequence[Job]) -> Sequence[Result]: ...


class StackedUpdates:
    """The updates of M clients, each copied to its row as it arrives: with the updates beside them, a
    cohort would be held twice.
    """

    def __init__(self, count: int) -> None:
        """Wait for the updates of `count` clients, in any order."""
        self._count = count
        self._stacked: ClientUpdate | None = None

    def put(self, row: int, update: ClientUpdate) -> None:
        """Copy the update of a client to its row."""
        if self._stacked is None:
            self._stacked = ClientUpdate(
                self._empty(update.delta),
                {name: self._empty(vector) for name, vector in update.memory.items()},
                {name: self._empty(vector) for name, vector in update.shared.items()},
            )
        stacked = self._stacked
        stacked.delta[row] = update.delta
        for whole, own in ((stacked.memory, update.memory), (stacked.shared, update.shared)):
            for name, vectors in whole.items():
                vectors[row] = own[name]

    def whole(self) -> ClientUpdate:
        """Return the updates of all clients."""
        assert self._stacked is not None
        return self._stacked

    def _empty(self, vector: Tensor) -> Tensor:
        return vector.new_empty(self._count, *vector.shape)


class SummedUpdates:
    """The weighted sums of the deltas of M clients, each added when those before it in `order` have been,
    so that it changes no bit who is done first.
    """

    def __init__(self, job: Job, order: Sequence[int]) -> None:
        """Wait for the updates of a job with sums; `order` has the rows of all clients."""
        assert job.sums is not None
        self._weights, self._order = job.sums, iter(order)
        self._next = next(self._order)
        self._early: dict[int, Tensor] = {}
        self._sums: Tensor | None = None
        self._stacked = StackedUpdates(len(order)) if job.each else None

    def put(self, row: int, update: ClientUpdate) -> None:
        """Add the update of a client, and those that have waited for it."""
        if self._stacked is not None:
            self._stacked.put(row, update)
        if self._sums is None:
            self._sums = update.delta.new_zeros(len(self._weights), len(update.delta))
        self._early[row] = update.delta
        while (delta := self._early.pop(self._next, None)) is not None:
            self._sums.addr_(self._weights[:, self._next], delta)
            self._next = next(self._order, -1)

    def whole(self) -> AggregatedUpdate:
        """Return the sums, and the deltas if the job asks for each."""
        assert self._sums is not None
        return AggregatedUpdate(self._sums, None if self._stacked is None else self._stacked.whole().delta)


def with_statistics(update: ClientUpdate, statistics: Tensor | None) -> ClientUpdate:
    """The `update` with the running `statistics` [..., m, S] after the clients' passes, if there are such."""
    if statistics is None or not statistics.numel():
        return update
    memory = {**update.memory, STATISTICS: statistics}
    if PREVIOUS in memory:
        memory[PREVIOUS] = torch.cat([memory[PREVIOUS], statistics[..., 0, :]], -1)
    return replace(update, memory=memory)


@dataclass(frozen=True, slots=True)
class Observation:
    """A round as seen from above, including facts that no server could know."""

    algorithm: Algorithm
    work: CohortWork
    """The work of the M clients that reached the server, and the model x they started from: [D], or
    [M, D] if they started from different versions.
    """
    deltas: Tensor | None
    """[M, D] y_i - x as the clients computed it, before compression; None where the round was not
    opened to show each.
    """
    cohort: Cohort
    combined: Aggregate
    """The server's direction, what each client's delta counted in it, and the aggregator's state."""
    timing: RoundTiming | None = None
    """None without the simulated clock."""
