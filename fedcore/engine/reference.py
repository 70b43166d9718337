"""The engine `reference`: a loop over clients and steps without padding, the definition of right."""

from collections.abc import Sequence

import torch

from fedcore.core import ClientUpdate
from fedcore.data.plan import PADDING
from fedcore.engine.assignment import Job, stack_updates


def reference(jobs: Sequence[Job]) -> list[ClientUpdate]:
    """Train run after run, client after client, step after step."""
    return [stack_updates([_train(job, row) for row in range(len(job.work.clients))]) for job in jobs]


def _train(job: Job, row: int) -> ClientUpdate:
    algorithm, problem, assignment = job.algorithm, job.problem, job.work
    client, local = int(assignment.clients[row]), assignment.local.take(row)
    y, velocity = local.x, None
    for k, batch in enumerate(assignment.batches[row]):
        samples = torch.from_numpy(batch[batch != PADDING]).to(y.device)
        grad = problem.gradient(y, client, samples)
        if algorithm.rule.subtracts_gradient_at_x():
            grad = grad - problem.gradient(local.x, client, samples)
        elif assignment.noise is not None:
            grad = grad + torch.from_numpy(assignment.noise[row][k]).to(y)
        direction, velocity = algorithm.solver.direction(algorithm.rule, grad, y, velocity, local)
        y = y - assignment.sizes[k] * algorithm.rule.step_size_scale(local.steps) * direction
    return algorithm.rule.finish(y, local)
