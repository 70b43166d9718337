"""Shards of a cohort: equal parts of a round's work that are trained apart, in one process or on
several workers, and put together in a fixed order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np
import torch
from torch import Tensor

from fedcore.core import ClientUpdate, Vectors
from fedcore.engine.assignment import AggregatedUpdate, CohortWork, Engine, Ids, Job, Result

TrainShards = Callable[[Sequence[Job]], Sequence[Result]]
"""Trains shards of one round, each by itself: its result does not depend on the others."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """An engine that trains the `count` shards of each cohort apart.

    The result depends on `count`, since sums are added shard by shard, and not on who trains them.
    """

    count: int
    train: TrainShards

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        """Train run after run."""
        return [self._train(job) for job in jobs]

    def _train(self, job: Job) -> Result:
        rows = split(job.work, self.count)
        return merge(self.train([take(job, part) for part in rows]), rows)


def one_by_one(engine: Engine) -> TrainShards:
    """Train shards with `engine`, one after another."""
    return lambda shards: [train_shard(engine, shard) for shard in shards]


def train_shard(engine: Engine, shard: Job) -> Result:
    """Train one shard; where weighted sums are all that is wanted, they are all that is returned."""
    (result,) = engine([shard])
    if shard.sums is None or not isinstance(result, ClientUpdate) or result.memory or result.shared:
        return result
    return AggregatedUpdate(shard.sums @ result.delta, result.delta if shard.each else None)


def split(work: CohortWork, count: int) -> list[Ids]:
    """Divide the rows [M] of a cohort into at most `count` shards, none of them empty.

    Clients go to the shard with the fewest samples to train on so far, clients with the most
    samples first; the rows of a shard are ascending.
    """
    samples = np.array([batch.size for batch in work.batches])
    shards: list[list[int]] = [[] for _ in range(min(count, len(samples)))]
    load = [(0, number) for number in range(len(shards))]
    heapify(load)
    for row in np.argsort(-samples, kind="stable").tolist():
        held, number = heappop(load)
        shards[number].append(row)
        heappush(load, (held + int(samples[row]), number))
    return [np.array(sorted(rows), np.int64) for rows in shards]


def take(job: Job, rows: Ids) -> Job:
    """The part of a job in some `rows` of its cohort."""
    work, index = job.work, torch.from_numpy(rows).to(job.work.local.x.device)
    part = replace(
        work,
        clients=work.clients[rows],
        steps=work.steps[rows],
        batches=tuple(work.batches[row] for row in rows),
        noise=None if work.noise is None else tuple(work.noise[row] for row in rows),
        local=work.local.take(index),
        passes=work.passes and work.passes.take(rows.tolist()),
        models=None if work.models is None else work.models[rows],
    )
    return replace(job, work=part, sums=None if job.sums is None else job.sums[:, index])


def merge(results: Sequence[Result], rows: Sequence[Ids]) -> Result:
    """The result of a whole cohort, given the results of its shards and the `rows` of each; sums
    are added in the order of the shards.
    """
    index = torch.from_numpy(np.argsort(np.concatenate(rows)))
    sums = [result for result in results if isinstance(result, AggregatedUpdate)]
    if sums:
        total = sums[0].sums
        for result in sums[1:]:
            total = total + result.sums
        deltas = [result.deltas for result in sums if result.deltas is not None]
        return AggregatedUpdate(total, _in_order(deltas, index) if deltas else None)
    updates = [result for result in results if isinstance(result, ClientUpdate)]
    return ClientUpdate(
        delta=_in_order([update.delta for update in updates], index),
        memory=_named([update.memory for update in updates], index),
        shared=_named([update.shared for update in updates], index),
    )


def _in_order(parts: Sequence[Tensor], index: Tensor) -> Tensor:
    return torch.cat(list(parts))[index.to(parts[0].device)]


def _named(parts: Sequence[Vectors], index: Tensor) -> Vectors:
    return {name: _in_order([part[name] for part in parts], index) for name in parts[0]}
