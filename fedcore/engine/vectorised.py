"""The engine `vectorised`: all clients of all runs together, by descending steps, so that rows fall
away as they finish.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedcore.core import ClientUpdate
from fedcore.engine.assignment import Ids, Job
from fedcore.engine.client_stack import ClientStack, Number, descent, step_sizes
from fedcore.problems import TrainingProblem
from fedcore.problems.base import Stackable

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
    """Key of the jobs that share a stack; a rule of any other form has a stack of its own."""
    rule, rows = job.algorithm.rule, ClientStack.of([job])
    if job.problem.kind is None or rule.affine_form() is None:
        return id(job)
    # Of batches whose widths are alike, so that there is little padding.
    return (
        job.problem.kind,
        rule.subtracts_gradient_at_x(),
        job.work.noise is None,
        rows.repeat,
        rows.widest.bit_length(),
    )


def _train(jobs: Sequence[Job]) -> list[ClientUpdate]:
    """Train one stack after another, with the best number of rows at a time."""
    rows, problem = ClientStack.of(jobs), jobs[0].problem
    clients, ids = _clients(jobs, rows)
    thrift = max(job.memory_divisor for job in jobs)
    together, capacity = max(1, _together(rows, problem) // thrift), problem.capacity // thrift
    parts = [slice(start, start + together) for start in range(0, len(rows), together)]
    y = torch.cat([_advance(rows.cut(part), clients, ids[part], capacity) for part in parts])
    return [
        job.algorithm.rule.finish(own, job.work.local) for job, own in zip(jobs, rows.back(y), strict=True)
    ]


def _together(rows: ClientStack, problem: TrainingProblem) -> int:
    """Return the number of rows to train at a time: limited by memory and, on a CPU, by its caches."""
    x, room = rows.jobs[0].work.local.x, problem.capacity // rows.widest
    return min(len(rows), max(1, room if x.is_cuda else min(room, CACHE_BYTES // x.nbytes)))


def _clients(jobs: Sequence[Job], rows: ClientStack) -> tuple[Stackable, Ids]:
    """Return the clients that the rows' mini-batches are gathered from, and each row's index [R]
    among them.
    """
    problem = jobs[0].problem
    if len(jobs) == 1:
        return problem, jobs[0].work.clients[rows.place]
    return problem.joined([(job.problem, job.work.clients) for job in jobs]), rows.number


def _advance(rows: ClientStack, clients: Stackable, ids: Ids, capacity: int) -> Tensor:
    """The local models [R, D] after each row's last step.

    Step k works on the rows that have more than k.
    """
    x = rows.spread([job.work.local.x for job in rows.jobs])
    y, compares, recursion = (
        x.clone(),
        rows.jobs[0].algorithm.rule.subtracts_gradient_at_x(),
        descent(rows, x),
    )
    finished: list[Tensor] = []
    for stretch in rows.stretches(capacity):
        active = stretch.active
        if active < len(y):
            finished.append(y[active:])
            x, y = x[:active], y[:active]
            recursion.cut(active)
        stacked = clients.stack(ids[:active], rows.samples(stretch))
        noise, sizes = rows.noise(stretch, y), step_sizes(rows, stretch, y)
        for k, size in enumerate(sizes):
            grad = stacked.gradient(y, k)
            if compares:
                grad = grad - stacked.gradient(x, k)
            elif noise is not None:
                grad = grad + noise[:, k]
            _descend(y, recursion.direction(grad, y), size)
    return torch.cat([y, *reversed(finished)])


def _descend(y: Tensor, direction: Tensor, size: Number) -> None:
    """y <- y - size direction, in place."""
    if isinstance(size, Tensor):
        y.addcmul_(direction, size, value=-1)
    else:
        y.sub_(direction, alpha=size)
