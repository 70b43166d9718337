"""The engine `vectorised`: all clients together, sorted by local steps, so that those who are done fall away."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcore.core import Algorithm, Local, Upload, Vectors
from fedcore.data.plan import PADDING
from fedcore.engine.assignment import Assignment, Ids, Job, select
from fedcore.problems import Problem


def vectorised(jobs: Sequence[Job]) -> list[Upload]:
    """Run by run."""
    return [_train(job.algorithm, job.problem, job.assignment) for job in jobs]


def _train(algorithm: Algorithm, problem: Problem, assignment: Assignment) -> Upload:
    """All clients at once, or as many as the problem has capacity for; longest first, so that those who are done fall away."""
    order = np.argsort(-assignment.steps, kind="stable")
    together = max(1, problem.capacity // _widest(assignment.batches))
    groups = np.split(order, range(together, len(order), together))
    uploads = [_train_together(algorithm, problem, assignment, group) for group in groups]
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(assignment.local.x.device)
    return Upload(
        delta=torch.cat([upload.delta for upload in uploads])[back],
        memory=_take(_join([upload.memory for upload in uploads]), back),
        shared=_take(_join([upload.shared for upload in uploads]), back),
    )


def _train_together(algorithm: Algorithm, problem: Problem, assignment: Assignment, order: Ids) -> Upload:
    """Step k works on the clients of `order` that have more than k steps; they come by descending steps."""
    local = select(assignment.local, torch.from_numpy(order).to(assignment.local.x.device))
    return algorithm.rule.finish(_advance(algorithm, problem, assignment, order, local), local)


def _advance(algorithm: Algorithm, problem: Problem, assignment: Assignment, order: Ids, local: Local) -> Tensor:
    """The local models [M, D] after the last step of each client, in `order`."""
    y: Tensor = local.x.expand(len(order), -1)
    velocity: Tensor | None = None
    finished: list[Tensor] = []
    solver, rule, sizes = algorithm.solver, algorithm.rule, assignment.sizes
    for stretch in _stretches(assignment.steps[order], _room(problem, [assignment.batches[row] for row in order])):
        active = stretch.active
        if active < len(y):
            finished.append(y[active:])
            y, velocity = y[:active], None if velocity is None else velocity[:active]
            local = select(local, slice(active))
        rows = order[:active]
        stacked = problem.stack(assignment.clients[rows], _batches(assignment, rows, stretch))
        noise, pace = _noise(assignment, rows, stretch, y), rule.pace(local.steps)
        for k in range(stretch.stop - stretch.start):
            grad = stacked.gradient(y, k)
            if rule.compares():
                grad = grad - stacked.gradient(local.x.expand(active, -1), k)
            elif noise is not None:
                grad = grad + noise[:, k]
            direction, velocity = solver.direction(rule, grad, y, velocity, local)
            y = y.sub(direction if isinstance(pace, float) else pace * direction, alpha=sizes[stretch.start + k])
    return torch.cat([y, *reversed(finished)])


class _Stretch(NamedTuple):
    """Consecutive steps in which the same clients are active."""

    start: int
    stop: int
    active: int


def _stretches(steps: Ids, batches: int) -> Iterator[_Stretch]:
    """Cut the round where clients finish (`steps` descending), and where a stretch would hold more than so many batches."""
    ends = [0, *np.unique(steps).tolist()]
    for start, stop in pairwise(ends):
        active = int((steps > start).sum())
        length = max(1, batches // active)
        for first in range(start, stop, length):
            yield _Stretch(first, min(first + length, stop), active)


def _room(problem: Problem, batches: list[Ids]) -> int:
    """How many batches a stretch may hold; where all repeat, each is held once, however long the stretch."""
    return sum(map(len, batches)) if _repeat(batches) else problem.capacity // _widest(batches)


def _batches(assignment: Assignment, rows: Ids, stretch: _Stretch) -> Tensor:
    """Sample indices [m, S, B] of a stretch; when every client repeats one batch, a view that repeats it."""
    chosen = [assignment.batches[row] for row in rows]
    repeated = _repeat(chosen)
    length = stretch.stop - stretch.start
    stacked = np.full((len(rows), 1 if repeated else length, _widest(chosen)), PADDING, np.int64)
    for target, batch in zip(stacked, chosen, strict=True):
        target[:, : batch.shape[1]] = batch[:1] if repeated else batch[stretch.start : stretch.stop]
    return torch.from_numpy(stacked).expand(-1, length, -1)


def _noise(assignment: Assignment, rows: Ids, stretch: _Stretch, like: Tensor) -> Tensor | None:
    if assignment.noise is None:
        return None
    return torch.from_numpy(np.stack([assignment.noise[row][stretch.start : stretch.stop] for row in rows])).to(like)


def _join(parts: list[Vectors]) -> Vectors:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _take(vectors: Vectors, rows: Tensor) -> Vectors:
    return {name: vector[rows] for name, vector in vectors.items()}


def _repeat(batches: list[Ids]) -> bool:
    """Whether every client sees one batch in all its steps."""
    return all(batch.strides[0] == 0 for batch in batches)


def _widest(batches: tuple[Ids, ...] | list[Ids]) -> int:
    return max(int(batch.shape[1]) for batch in batches)
