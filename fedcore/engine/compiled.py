"""The engine `compiled`: each client's whole training in machine code, for softmax regression under an affine rule."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from fedcore.core import Algorithm, Upload
from fedcore.engine.affine import factors, offsets, pull
from fedcore.engine.assignment import Job
from fedcore.problems import Problem


def suits(algorithm: Algorithm, problem: Problem) -> bool:
    """Whether this engine can train `problem` by `algorithm`."""
    data = problem.softmax
    return data is not None and data.features.device.type == "cpu" and pull(algorithm.rule) is not None


def compiled(jobs: Sequence[Job]) -> list[Upload]:
    """Client by client, those of all jobs in one line, longest first, on as many threads as the tensor library has.

    Neither the threads nor the other jobs change a bit.
    """
    cohorts = [_Training(job) for job in jobs]
    clients = [(cohort, row) for cohort in cohorts for row in range(len(cohort.steps))]
    clients.sort(key=lambda client: -client[0].steps[client[1]])
    _each([partial(cohort.train, row) for cohort, row in clients])
    return [cohort.upload() for cohort in cohorts]


class _Training:
    """A job's cohort while it trains."""

    def __init__(self, job: Job) -> None:
        """Lay out the models [M, C, d + 1] and what is the same in all steps."""
        data, local, rule = job.problem.softmax, job.assignment.local, job.algorithm.rule
        assert data is not None
        self.steps, self._job, self._data = job.assignment.steps, job, data
        start = local.x.expand(len(self.steps), -1)
        matrices = (len(start), *data.shape)
        self._offsets = offsets(rule, local).contiguous().numpy().reshape(matrices)
        self._models, self._x = start.clone().numpy().reshape(matrices), local.x.numpy().reshape(data.shape)
        self._sizes = job.assignment.sizes.first_of(int(self.steps.max()))
        self._paces = np.broadcast_to(np.asarray(rule.pace(local.steps)), (len(start), 1))

    def train(self, row: int) -> None:
        """All local steps of one client."""
        # Here, because machine code is made at the first use, which takes about a second.
        from fedcore.engine import kernels

        data, assignment, algorithm = self._data, self._job.assignment, self._job.algorithm
        client, batches, number = int(assignment.clients[row]), assignment.batches[row], self._models.dtype.type
        seen = np.ascontiguousarray(batches[:1] if batches.strides[0] == 0 else batches)
        scale = float(data.scale[client])
        share = kernels.Share(data.features.numpy(), data.labels.numpy(), data.rows(client).numpy(), seen, number(scale))
        own = (self._sizes[: self.steps[row]] * self._paces[row]).astype(number)
        towards, shrink, momentum = map(number, factors(algorithm, scale * data.l2))
        recursion = kernels.Recursion(own, self._offsets[row], towards, shrink, momentum, algorithm.rule.compares())
        kernels.train(self._models[row], self._x, share, recursion)

    def upload(self) -> Upload:
        """What the clients send once they are trained."""
        return self._job.algorithm.rule.finish(torch.from_numpy(self._models.reshape(len(self._models), -1)), self._job.assignment.local)


def _each(tasks: Iterable[Callable[[], None]]) -> None:
    threads = torch.get_num_threads()
    if threads == 1:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(task) for task in tasks]:
            done.result()
