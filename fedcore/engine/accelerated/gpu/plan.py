"""Describe a launch's programs as arrays."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.data.plan import PADDING
from fedcore.engine.assignment import Ids, Job
from fedcore.engine.local_solver import Factors, factors, step_size_scales
from fedcore.problems.dense import DenseNetwork


class LaunchPlan(NamedTuple):
    """Arguments of `gpu.kernels.train`.

    Clients are numbered through all jobs, samples through all that those clients hold.
    """

    programs: NDArray[np.int32]
    """[M, FIELDS], longest first."""
    factors: NDArray[np.floating]
    """[M, 2] what y and v are multiplied by in each step."""
    batches: NDArray[np.int32]
    weights: NDArray[np.floating]
    sizes: NDArray[np.floating]
    pulls: NDArray[np.floating]
    """[M, 1] what x is multiplied by, and then taken off."""
    held: Ids
    """[n] where the samples are in the order of their job's data."""


class _Client(NamedTuple):
    run: int
    steps: int
    first: int
    """Where its samples begin in the order of its job's data."""
    held: int
    batches: Ids
    """[tau, B], or [1, B] where every step sees the same."""
    weights: NDArray[np.floating]
    sizes: NDArray[np.floating]
    factors: Factors


def plan(jobs: Sequence[Job], samples: int, dtype: Any) -> LaunchPlan:
    """Plan programs that take `samples` at a time; numbers are of type `dtype`."""
    clients = [client for run, job in enumerate(jobs) for client in _clients(job, run)]
    steps, held = (
        np.array([client.steps for client in clients]),
        np.array([client.held for client in clients]),
    )
    shifts = _before(held)
    batches = [
        np.where(client.batches == PADDING, PADDING, client.batches + shift)
        for client, shift in zip(clients, shifts, strict=True)
    ]
    widths = np.array([batch.shape[1] for batch in batches])
    strides = [
        0 if len(client.batches) < client.steps else width
        for client, width in zip(clients, widths, strict=True)
    ]
    begins = _before(np.array([batch.size for batch in batches]))
    programs = np.stack(
        [
            np.arange(len(clients)),
            [client.run for client in clients],
            steps,
            _before(steps),
            begins,
            strides,
            widths,
        ],
        1,
    )
    longest_first = np.argsort(-steps * -(-widths // samples), kind="stable")
    return LaunchPlan(
        programs[longest_first].astype(np.int32),
        np.array(
            [(client.factors.shrink + client.factors.pull, client.factors.momentum) for client in clients],
            dtype,
        ),
        np.concatenate([batch.ravel() for batch in batches]).astype(np.int32),
        np.concatenate([client.weights for client in clients]).astype(dtype),
        np.concatenate([client.sizes for client in clients]).astype(dtype),
        np.array([[client.factors.pull] for client in clients], dtype),
        np.arange(held.sum()) + np.repeat([client.first for client in clients] - shifts, held),
    )


def data_of(job: Job) -> DenseNetwork:
    """Return the data of a job that this engine can train."""
    assert job.problem.dense is not None
    return job.problem.dense


def _clients(job: Job, run: int) -> Iterator[_Client]:
    data, assignment, algorithm = data_of(job), job.work, job.algorithm
    sizes = assignment.sizes.first_of(int(assignment.steps.max()))
    scales = step_size_scales(algorithm.rule, assignment.steps)
    for client, steps, batches, step_scale in zip(
        assignment.clients, assignment.steps, assignment.batches, scales, strict=True
    ):
        scale, seen = data.scale[client], batches[:1] if batches.strides[0] == 0 else batches
        weights = np.broadcast_to(scale / (seen != PADDING).sum(1), steps)
        first, end = data.offsets[client : client + 2]
        yield _Client(
            run,
            steps,
            first,
            end - first,
            seen,
            weights,
            sizes[:steps] * step_scale,
            factors(algorithm, scale * data.l2),
        )


def _before(counts: Ids) -> Ids:
    """Return the sum of all earlier values, for each."""
    return np.cumsum(counts) - counts
