"""The engines that train client by client: `reference`, a loop without padding and the definition of
right, and `parallel`, with one client per core and the problem's fastest gradient.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from fedcore.core import ClientContext, ClientUpdate
from fedcore.data.plan import PADDING
from fedcore.engine.assignment import Job, Result, StackedUpdates, SummedUpdates, with_statistics
from fedcore.engine.local_program import LocalProgram
from fedcore.engine.local_solver import initial_state, step_size_scales
from fedcore.problems.base import Gradient
from fedcore.problems.parallel_map import WorkerCopies, parallel_map
from fedcore.problems.passes import ForwardPasses, step_of


def reference(jobs: Sequence[Job]) -> list[ClientUpdate]:
    """Train run after run, client after client, step after step."""
    stacked = [StackedUpdates(len(job.work.clients)) for job in jobs]
    for job, updates in zip(jobs, stacked, strict=True):
        for row in range(len(job.work.clients)):
            updates.put(row, _train_by_definition(job, row))
    return [updates.whole() for updates in stacked]


def _train_by_definition(job: Job, row: int) -> ClientUpdate:
    local, passes = job.work.local.take(row), job.work.passes_of(row)
    y = local.x
    for y in _iterates(job, row, local, passes):  # noqa: B007 - the last one counts
        pass
    return with_statistics(LocalProgram.of(job).finish(y, local), _trained(passes))


def _trained(passes: ForwardPasses | None) -> Tensor | None:
    """The running statistics [m, S] of one client."""
    return None if passes is None else passes.statistics[0]


def _iterates(job: Job, row: int, local: ClientContext, passes: ForwardPasses | None) -> Iterator[Tensor]:
    """The client's y [D], or [m, D], after each of its local steps; `passes` change in place."""
    algorithm, problem, assignment, program = job.algorithm, job.problem, job.work, LocalProgram.of(job)
    y, state = local.x, initial_state(algorithm.solver, local.x)
    scale = float(step_size_scales(algorithm.rule, assignment.steps[row : row + 1])[0])
    for k in range(len(assignment.batches[row])):
        grad = _gradient_of_step(job, row, k, problem.gradient, y, local, passes)
        step, state = program.step(grad, y, state, k, local)
        y = y - assignment.sizes[k] * scale * step
        yield y


def first_step_not_finite(job: Job, row: int) -> int | None:
    """The local step, from 1, after which the model of a client is no longer finite; 0 if it begins
    with a vector that is not, None if all are finite.
    """
    local = job.work.local.take(row)
    given = [local.x, local.full_gradient, local.mean_gradient, *local.shared.values()]
    if not all(bool(part.isfinite().all()) for part in (*given, *local.memory.values()) if part is not None):
        return 0
    for k, y in enumerate(_iterates(job, row, local, job.work.passes_of(row))):
        if not bool(y.isfinite().all()):
            return k + 1
    return None


def _gradient_of_step(
    job: Job,
    row: int,
    k: int,
    gradient: Gradient,
    y: Tensor,
    local: ClientContext,
    passes: ForwardPasses | None,
) -> Tensor:
    """The gradient of the k-th step of a client at `y`."""
    work = job.work
    client, batch = int(work.clients[row]), work.batches[row][k]
    samples = torch.from_numpy(batch[batch != PADDING]).to(y.device)

    def evaluate(model: Tensor, *, evaluation: int, at_x: bool = False) -> Tensor:
        grad = gradient(model, client, samples, *step_of(passes, k, evaluation, at_x=at_x))
        return grad if work.noise is None else grad + torch.from_numpy(work.noise[row][k]).to(y)

    return LocalProgram.of(job).gradient(evaluate, y, k, local)


def parallel(jobs: Sequence[Job]) -> list[Result]:
    """Train the clients of all jobs one by one, most samples first, on the tensor library's
    threads.

    Each client is trained by one thread: neither the number of threads nor the other jobs change a
    bit.
    """
    replicas = [WorkerCopies(job.problem.replica) for job in jobs]
    line = [(number, row) for number, job in enumerate(jobs) for row in range(len(job.work.clients))]
    line.sort(key=lambda turn: -jobs[turn[0]].work.batches[turn[1]].size)
    received = [
        _receiver(job, [row for other, row in line if other == number]) for number, job in enumerate(jobs)
    ]

    def put(place: int, update: ClientUpdate) -> None:
        number, row = line[place]
        received[number].put(row, update)

    parallel_map(
        [partial(_train_on_replica, jobs[number], row, replicas[number]) for number, row in line],
        jobs[0].work.local.x.device,
        put,
    )
    return [updates.whole() for updates in received]


def _receiver(job: Job, order: Sequence[int]) -> StackedUpdates | SummedUpdates:
    passes = job.work.passes
    if job.sums is None or (passes is not None and passes.statistics.numel()):
        return StackedUpdates(len(order))
    return SummedUpdates(job, order)


def _train_on_replica(job: Job, row: int, replicas: WorkerCopies) -> ClientUpdate:
    """Run all local steps of one client."""
    algorithm, assignment, program = job.algorithm, job.work, LocalProgram.of(job)
    local = assignment.local.take(row)
    y, state, passes = local.x.clone(), initial_state(algorithm.solver, local.x), assignment.passes_of(row)
    scale = float(step_size_scales(algorithm.rule, assignment.steps[row : row + 1])[0])
    with replicas.one() as gradient:
        for k in range(len(assignment.batches[row])):
            grad = _gradient_of_step(job, row, k, gradient, y, local, passes)
            step, state = program.step(grad, y, state, k, local)
            y.sub_(step, alpha=assignment.sizes[k] * scale)
    return with_statistics(program.finish(y, local), _trained(passes))
