"""Clients of several runs as the rows of one stack, by descending steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcore.data.plan import PADDING
from fedcore.engine.assignment import Ids, Job


class Stretch(NamedTuple):
    """Consecutive steps in which the same rows are active."""

    start: int
    stop: int
    active: int

    @property
    def steps(self) -> slice:
        """Which steps of the round they are."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Rows:
    """Which client of which job each row is."""

    jobs: Sequence[Job]
    owner: Ids
    """[R] the row's job."""
    place: Ids
    """[R] its row in the job's assignment."""
    steps: Ids
    """[R] its local steps, descending."""
    batches: Sequence[Ids]
    """R arrays [tau, B] of its sample indices."""

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Rows:
        """All clients of `jobs`."""
        counts = [len(job.assignment.steps) for job in jobs]
        owner, place = np.repeat(np.arange(len(jobs)), counts), np.concatenate([np.arange(count) for count in counts])
        steps = np.concatenate([job.assignment.steps for job in jobs])
        order = np.argsort(-steps, kind="stable")
        batches = [batch for job in jobs for batch in job.assignment.batches]
        return cls(jobs, owner[order], place[order], steps[order], [batches[row] for row in order.tolist()])

    def __len__(self) -> int:
        return len(self.steps)

    def cut(self, rows: slice) -> Rows:
        """Some of the rows."""
        return replace(self, owner=self.owner[rows], place=self.place[rows], steps=self.steps[rows], batches=self.batches[rows])

    @property
    def number(self) -> Ids:
        """[R] where each row is when the jobs' clients follow one another."""
        before = np.cumsum([0, *(len(job.assignment.steps) for job in self.jobs)])
        return before[self.owner] + self.place

    def spread(self, vectors: Sequence[Tensor]) -> Tensor:
        """One vector [D] for each job as [R, D]."""
        if len(vectors) == 1:
            return vectors[0].expand(len(self), -1)
        return torch.stack(list(vectors))[torch.from_numpy(self.owner).to(vectors[0].device)]

    def sort(self, parts: Sequence[Tensor]) -> Tensor:
        """What belongs to the clients of each job, [M, ...] each, as [R, ...]."""
        return torch.cat(list(parts))[torch.from_numpy(self.number).to(parts[0].device)]

    def back(self, values: Tensor) -> Sequence[Tensor]:
        """`values` [R, ...] of all rows as what belongs to the clients of each job, [M, ...] each."""
        order = torch.from_numpy(np.argsort(self.number)).to(values.device)
        return torch.split(values[order], [len(job.assignment.steps) for job in self.jobs])

    def stretches(self, capacity: int) -> Iterator[Stretch]:
        """Cut the round where rows are done, and where a stretch would hold more samples than `capacity`."""
        room = sum(map(len, self.batches)) if self.repeat else capacity // self.widest
        for start, stop in pairwise([0, *np.unique(self.steps).tolist()]):
            active = int((self.steps > start).sum())
            length = max(1, room // active)
            for first in range(start, stop, length):
                yield Stretch(first, min(first + length, stop), active)

    def samples(self, stretch: Stretch) -> Tensor:
        """Sample indices [m, S, B] of the active rows; where all rows repeat one batch, a view that repeats it."""
        chosen, length = self.cut(slice(stretch.active)), stretch.stop - stretch.start
        stacked = np.full((stretch.active, 1 if chosen.repeat else length, chosen.widest), PADDING, np.int64)
        for target, batch in zip(stacked, chosen.batches, strict=True):
            target[:, : batch.shape[1]] = batch[:1] if chosen.repeat else batch[stretch.steps]
        return torch.from_numpy(stacked).expand(-1, length, -1)

    def noise(self, stretch: Stretch, like: Tensor) -> Tensor | None:
        """What is added to the gradients of the active rows, [m, S, D]."""
        if self.jobs[0].assignment.noise is None:
            return None
        drawn = [noise for job in self.jobs for noise in job.assignment.noise or ()]
        chosen = [drawn[row][stretch.steps] for row in self.number[: stretch.active]]
        return torch.from_numpy(np.stack(chosen)).to(like)

    @property
    def widest(self) -> int:
        """The largest B."""
        return max(int(batch.shape[1]) for batch in self.batches)

    @property
    def repeat(self) -> bool:
        """Whether every row sees one batch in all its steps: each is then held once, however long a stretch is."""
        return all(batch.strides[0] == 0 for batch in self.batches)
