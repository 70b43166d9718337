"""The engine `vectorised`: the clients of all runs as rows of one stack, by descending steps, so that
rows fall away as they finish.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedcore.core import ClientUpdate
from fedcore.data.plan import PADDING
from fedcore.engine.assignment import Ids, Job, with_statistics
from fedcore.engine.local_program import Evaluate, LocalProgram
from fedcore.engine.local_solver import factors, has_offset, initial_state, offsets, step_size_scales
from fedcore.problems import TrainingProblem
from fedcore.problems.base import Stackable, Stacked
from fedcore.problems.passes import ForwardPasses, step_of


class StepRange(NamedTuple):
    """Consecutive steps in which the same rows are active."""

    start: int
    stop: int
    active: int

    @property
    def steps(self) -> slice:
        """The steps of the round in this range."""
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class ClientStack:
    """Maps rows to jobs and clients."""

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
    def of(cls, jobs: Sequence[Job]) -> ClientStack:
        """Stack all clients of `jobs`."""
        counts = [len(job.work.steps) for job in jobs]
        owner, place = (
            np.repeat(np.arange(len(jobs)), counts),
            np.concatenate([np.arange(count) for count in counts]),
        )
        steps = np.concatenate([job.work.steps for job in jobs])
        order = np.argsort(-steps, kind="stable")
        batches = [batch for job in jobs for batch in job.work.batches]
        return cls(jobs, owner[order], place[order], steps[order], [batches[row] for row in order.tolist()])

    def __len__(self) -> int:
        return len(self.steps)

    def cut(self, rows: slice) -> ClientStack:
        """Select some of the rows."""
        return replace(
            self,
            owner=self.owner[rows],
            place=self.place[rows],
            steps=self.steps[rows],
            batches=self.batches[rows],
        )

    @property
    def number(self) -> Ids:
        """[R] the index of each row when the jobs' clients follow one another."""
        before = np.cumsum([0, *(len(job.work.steps) for job in self.jobs)])
        return before[self.owner] + self.place

    def spread(self, vectors: Sequence[Tensor]) -> Tensor:
        """Expand one vector [D] per job to [R, D]; vectors of each client [M, ..., D] are reordered."""
        if any(vector.dim() > 1 for vector in vectors):
            members = zip(vectors, self.jobs, strict=True)
            return self.sort(
                [
                    vector.expand(len(job.work.steps), -1) if vector.dim() == 1 else vector
                    for vector, job in members
                ]
            )
        if len(vectors) == 1:
            return vectors[0].expand(len(self), -1)
        return torch.stack(list(vectors))[torch.from_numpy(self.owner).to(vectors[0].device)]

    def sort(self, parts: Sequence[Tensor]) -> Tensor:
        """Reorder the jobs' per-client values, [M, ...] each, to [R, ...]."""
        return torch.cat(list(parts))[torch.from_numpy(self.number).to(parts[0].device)]

    def back(self, values: Tensor) -> Sequence[Tensor]:
        """Split `values` [R, ...] of all rows into the jobs' per-client values, [M, ...] each."""
        order = torch.from_numpy(np.argsort(self.number)).to(values.device)
        return torch.split(values[order], [len(job.work.steps) for job in self.jobs])

    def stretches(self, capacity: int) -> Iterator[StepRange]:
        """Cut the round where rows finish, and where a stretch would hold more samples than
        `capacity`.
        """
        room = sum(map(len, self.batches)) if self.repeat else capacity // self.widest
        for start, stop in pairwise([0, *np.unique(self.steps).tolist()]):
            active = int((self.steps > start).sum())
            length = max(1, room // active)
            for first in range(start, stop, length):
                yield StepRange(first, min(first + length, stop), active)

    def samples(self, steps: StepRange) -> Tensor:
        """Sample indices [m, S, B] of the active rows.

        Where all rows repeat one batch, a view that repeats it.
        """
        chosen, length = self.cut(slice(steps.active)), steps.stop - steps.start
        stacked = np.full((steps.active, 1 if chosen.repeat else length, chosen.widest), PADDING, np.int64)
        for target, batch in zip(stacked, chosen.batches, strict=True):
            target[:, : batch.shape[1]] = batch[:1] if chosen.repeat else batch[steps.steps]
        return torch.from_numpy(stacked).expand(-1, length, -1)

    def noise(self, steps: StepRange, like: Tensor) -> Tensor | None:
        """Noise added to the gradients of the active rows, [m, S, D]."""
        if self.jobs[0].work.noise is None:
            return None
        drawn = [noise for job in self.jobs for noise in job.work.noise or ()]
        chosen = [drawn[row][steps.steps] for row in self.number[: steps.active]]
        return torch.from_numpy(np.stack(chosen)).to(like)

    def passes(self) -> ForwardPasses | None:
        """State of the rows' forward passes, a copy; None for networks that keep no such state."""
        known = [job.work.passes for job in self.jobs]
        places = zip(self.owner.tolist(), self.place.tolist(), strict=True)
        if known[0] is None:
            return None
        chosen = [known[owner].take([place]) for owner, place in places]
        views = [passes.view for passes in chosen if passes.view is not None]
        return ForwardPasses(
            [passes.keys[0] for passes in chosen],
            torch.cat([passes.statistics for passes in chosen]),
            {name: torch.cat([view[name] for view in views]) for name in views[0]} if views else None,
        )

    @property
    def widest(self) -> int:
        """The largest B."""
        return max(int(batch.shape[1]) for batch in self.batches)

    @property
    def repeat(self) -> bool:
        """True if every row sees one batch in all its steps: each is then held once, however long a
        stretch is.
        """
        return all(batch.strides[0] == 0 for batch in self.batches)


Number = float | Tensor
"""One for all rows, or a column [R, 1] of theirs; [R, 1, 1] where rows have several models."""


class Descent(Protocol):
    """The recursion of the local solver over the rows of a stack. Changes in place."""

    def cut(self, active: int) -> None:
        """Continue with the first rows only."""

    def step(self, grad: Tensor, y: Tensor, k: int) -> Tensor:
        """Return the k-th step of the rows, at `y` [R, D]; `grad` [R, D] may be overwritten."""
        ...


def descent(rows: ClientStack, x: Tensor) -> Descent:
    """Return the descent of the jobs that the rows belong to, each at x [R, D] before its first
    step.

    Algorithms of any other form must belong to a single job.
    """
    affine = LocalProgram.of(rows.jobs[0]).is_affine()
    return AffineDescent(rows, x) if affine else GenericDescent(rows, x)


class AffineDescent:
    """v <- momentum v + g + shrink y + pull (y - x) + offset.

    Rows may differ in every number, and in their rules.
    """

    def __init__(self, rows: ClientStack, x: Tensor) -> None:
        jobs = rows.jobs
        known = [factors(job.algorithm, 0.0) for job in jobs]
        self._pull, self._shrink, self._momentum = (
            _number(rows, numbers, x) for numbers in zip(*known, strict=True)
        )
        self._x, self._offset = x, _offset(rows)
        self._velocity: Tensor | None = None

    def cut(self, active: int) -> None:
        self._x = self._x[:active]
        self._offset, self._velocity = (
            part if part is None else part[:active] for part in (self._offset, self._velocity)
        )
        self._pull, self._shrink, self._momentum = (
            part[:active] if isinstance(part, Tensor) else part
            for part in (self._pull, self._shrink, self._momentum)
        )

    def step(self, grad: Tensor, y: Tensor, k: int) -> Tensor:  # noqa: ARG002 - k counts for others
        if self._shrink is not None:
            grad = _add(grad, self._shrink, y)
        if self._pull is not None:
            grad = _add(grad, self._pull, y - self._x)
        if self._offset is not None:
            grad = grad.add_(self._offset)
        if self._momentum is None:
            return grad
        self._velocity = grad if self._velocity is None else self._velocity.mul_(self._momentum).add_(grad)
        return self._velocity


class GenericDescent:
    """Descent of a single job with any rule and solver: both are called in every step."""

    def __init__(self, rows: ClientStack, x: Tensor) -> None:
        (job,) = rows.jobs
        self._program = LocalProgram.of(job)
        self._state = initial_state(job.algorithm.solver, x)
        self._local = job.work.local.take(torch.from_numpy(rows.place).to(job.work.local.x.device))

    def cut(self, active: int) -> None:
        self._local = self._local.take(slice(active))
        self._state = {name: vectors[:active] for name, vectors in self._state.items()}

    def gradient(self, evaluate: Evaluate, y: Tensor, k: int) -> Tensor:
        """The gradients of the k-th step at `y` [R, D], of its shape; at [R, m, D] of several models."""
        return self._program.gradient(evaluate, y, k, self._local)

    def step(self, grad: Tensor, y: Tensor, k: int) -> Tensor:
        step, self._state = self._program.step(grad, y, self._state, k, self._local)
        return step


def step_sizes(rows: ClientStack, steps: StepRange, like: Tensor) -> Sequence[Number]:
    """Factors of the rows' steps, for each step of a stretch."""
    table = np.empty((steps.active, steps.stop - steps.start))
    for owner, job in enumerate(rows.jobs):
        mine = rows.owner[: steps.active] == owner
        scales = step_size_scales(job.algorithm.rule, job.work.steps)[rows.place[: steps.active][mine]]
        table[mine] = job.work.sizes.first_of(steps.stop)[steps.steps] * scales[:, None]
    if (table == table[:1]).all():
        return [float(size) for size in table[0]]
    shape = steps.stop - steps.start, steps.active, *[1] * (like.dim() - 1)
    return torch.from_numpy(table.T.copy().reshape(shape)).to(like).unbind(0)


def _number(rows: ClientStack, numbers: Sequence[float], like: Tensor) -> Number | None:
    """Spread the jobs' `numbers` over the rows; None if all are zero."""
    if len(set(numbers)) == 1:
        return float(numbers[0]) or None
    return torch.from_numpy(np.array(numbers)[rows.owner][:, None]).to(like)


def _offset(rows: ClientStack) -> Tensor | None:
    if not any(has_offset(job.algorithm.rule) for job in rows.jobs):
        return None
    return rows.sort([offsets(job.algorithm.rule, job.work.local) for job in rows.jobs])


def _add(total: Tensor, factor: Number, vectors: Tensor) -> Tensor:
    return (
        total.addcmul_(factor, vectors) if isinstance(factor, Tensor) else total.add_(vectors, alpha=factor)
    )


CACHE_BYTES = 8 << 20
"""Models in training take this much of a processor's caches at most: of larger stacks each step
would come from memory.
"""


def vectorised(jobs: Sequence[Job]) -> list[ClientUpdate]:
    """Train jobs of the same kind in one stack."""
    groups: dict[Hashable, list[int]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault(_kind(job), []).append(index)
    uploads: dict[int, ClientUpdate] = {}
    for group in groups.values():
        uploads |= zip(group, _train([jobs[index] for index in group]), strict=True)
    return [uploads[index] for index in range(len(jobs))]


def _kind(job: Job) -> Hashable:
    """Key of the jobs that share a stack; an algorithm that is not affine has a stack of its own."""
    rows = ClientStack.of([job])
    if job.problem.kind is None or not LocalProgram.of(job).is_affine():
        return id(job)
    # Of batches whose widths are alike, so that there is little padding.
    return (
        job.problem.kind,
        job.algorithm.starts_at_x(),
        "gradient_at_x" in job.algorithm.rule.needs(),
        job.work.noise is None,
        rows.repeat,
        rows.widest.bit_length(),
    )


def _train(jobs: Sequence[Job]) -> list[ClientUpdate]:
    """Train one stack after another, with the best number of rows at a time."""
    rows, problem = ClientStack.of(jobs), jobs[0].problem
    clients, ids = _clients(jobs, rows)
    divisor = max(job.memory_divisor for job in jobs)
    together, capacity = max(1, _together(rows, problem) // divisor), problem.capacity // divisor
    parts = [slice(start, start + together) for start in range(0, len(rows), together)]
    trained = [_advance(rows.cut(part), clients, ids[part], capacity) for part in parts]
    y = torch.cat([part for part, _ in trained])
    updates = [
        LocalProgram.of(job).finish(own, job.work.local) for job, own in zip(jobs, rows.back(y), strict=True)
    ]
    passes = [part.statistics for _, part in trained if part is not None]
    if not passes:
        return updates
    return [
        with_statistics(update, own)
        for update, own in zip(updates, rows.back(torch.cat(passes)), strict=True)
    ]


def _together(rows: ClientStack, problem: TrainingProblem) -> int:
    """Return the number of rows to train at a time: limited by memory and, on a CPU, by its caches."""
    x, room = rows.jobs[0].work.local.x, problem.capacity // rows.widest
    row_bytes = x.shape[-1] * rows.jobs[0].algorithm.models.trained * x.element_size()
    return min(len(rows), max(1, room if x.is_cuda else min(room, CACHE_BYTES // row_bytes)))


def _clients(jobs: Sequence[Job], rows: ClientStack) -> tuple[Stackable, Ids]:
    """Return the clients that the rows' mini-batches are gathered from, and each row's index [R]
    among them.
    """
    problem = jobs[0].problem
    if len(jobs) == 1:
        return problem, jobs[0].work.clients[rows.place]
    return problem.joined([(job.problem, job.work.clients) for job in jobs]), rows.number


def _advance(
    rows: ClientStack, clients: Stackable, ids: Ids, capacity: int
) -> tuple[Tensor, ForwardPasses | None]:
    """The local models [R, D] after each row's last step, [R, m, D] if it has several, and the state of its
    forward passes.

    Step k works on the rows that have more than k.
    """
    x = rows.spread([job.work.local.x for job in rows.jobs])
    compares = "gradient_at_x" in rows.jobs[0].algorithm.rule.needs()
    y, recursion = x.clone(), descent(rows, x)
    finished: list[Tensor] = []
    passes = rows.passes()
    for stretch in rows.stretches(capacity):
        active = stretch.active
        if active < len(y):
            finished.append(y[active:])
            x, y = x[:active], y[:active]
            recursion.cut(active)
        stacked = clients.stack(ids[:active], rows.samples(stretch), *step_of(passes, stretch.start))
        noise, sizes = rows.noise(stretch, y), step_sizes(rows, stretch, y)
        for k, size in enumerate(sizes):
            if isinstance(recursion, GenericDescent):
                evaluate = partial(_evaluate, stacked, noise, k, passes is not None)
                grad = recursion.gradient(evaluate, y, stretch.start + k)
            else:
                grad = stacked.gradient(y, k)
                if compares:
                    grad = grad - stacked.gradient(x, k, **({} if passes is None else {"at_x": True}))
                elif noise is not None:
                    grad = grad + noise[:, k]
            _descend(y, recursion.step(grad, y, stretch.start + k), size)
    return torch.cat([y, *reversed(finished)]), passes


def _evaluate(
    stacked: Stacked,
    noise: Tensor | None,
    k: int,
    counts: bool,
    models: Tensor,
    *,
    evaluation: int,
    at_x: bool = False,
) -> Tensor:
    """The gradients [m, D] of the k-th step of a stretch at `models` [m, D]. If it `counts`, which
    `evaluation` of the step it is decides on running statistics.
    """
    # One of several models is not laid out as a stack of models is.
    grad = stacked.gradient(
        models.contiguous(), k, **({"evaluation": evaluation, "at_x": at_x} if counts else {})
    )
    return grad if noise is None else grad + noise[:, k]


def _descend(y: Tensor, step: Tensor, size: Number) -> None:
    """y <- y - size step, in place."""
    if isinstance(size, Tensor):
        y.addcmul_(step, size, value=-1)
    else:
        y.sub_(step, alpha=size)
