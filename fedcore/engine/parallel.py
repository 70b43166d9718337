"""The engine `parallel`: client by client as `reference` does, but one client a core, and each step as lean as the problem makes it."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from fedcore.core import Upload, Vectors
from fedcore.data.plan import PADDING
from fedcore.engine.assignment import Job, select
from fedcore.problems.base import Gradient


def parallel(jobs: Sequence[Job]) -> list[Upload]:
    """Client by client, those of all jobs in one line, most samples first, on as many threads as the tensor library has.

    Each client is trained by one thread: neither their number nor the other jobs change a bit.
    """
    trainings = [_Training(job) for job in jobs]
    line = [(training, row) for training in trainings for row in range(len(training.uploads))]
    line.sort(key=lambda turn: -turn[0].samples(turn[1]))
    with _threads(line[0][0].device) as pool:
        for done in [pool.submit(training.train, row) for training, row in line]:
            done.result()
    return [training.upload() for training in trainings]


@contextmanager
def _threads(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """A thread for each that the tensor library has on the CPU, which within them has one; a GPU is served by one."""
    count = torch.get_num_threads()
    with ThreadPoolExecutor(count if device.type == "cpu" else 1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool
    # It holds for the thread that calls it, and for those that are started later.
    torch.set_num_threads(count)


class _Training:
    """A job's cohort while it trains."""

    def __init__(self, job: Job) -> None:
        self._job, self._spare = job, list[Gradient]()
        self.uploads: list[Upload | None] = [None] * len(job.assignment.clients)

    @property
    def device(self) -> torch.device:
        return self._job.assignment.local.x.device

    def samples(self, row: int) -> int:
        """How many samples the client's steps see, padding included."""
        return self._job.assignment.batches[row].size

    def train(self, row: int) -> None:
        """All local steps of one client."""
        # Whatever a gradient keeps between steps is taken up by the client whom the thread trains next.
        gradient = self._spare.pop() if self._spare else self._job.problem.replica()
        self.uploads[row] = _train(self._job, row, gradient)
        self._spare.append(gradient)

    def upload(self) -> Upload:
        """What the clients send once they are trained."""
        uploads = [upload for upload in self.uploads if upload is not None]
        return Upload(
            delta=torch.stack([upload.delta for upload in uploads]),
            memory=_stack([upload.memory for upload in uploads]),
            shared=_stack([upload.shared for upload in uploads]),
        )


def _train(job: Job, row: int, gradient: Gradient) -> Upload:
    algorithm, assignment = job.algorithm, job.assignment
    client, local = int(assignment.clients[row]), select(assignment.local, row)
    y, velocity, pace = local.x.clone(), None, float(algorithm.rule.pace(local.steps))
    for k, batch in enumerate(assignment.batches[row]):
        samples = torch.from_numpy(batch[batch != PADDING]).to(y.device)
        grad = gradient(y, client, samples)
        if algorithm.rule.compares():
            grad = grad - gradient(local.x, client, samples)
        elif assignment.noise is not None:
            grad = grad + torch.from_numpy(assignment.noise[row][k]).to(y)
        direction, velocity = algorithm.solver.direction(algorithm.rule, grad, y, velocity, local)
        y.sub_(direction, alpha=assignment.sizes[k] * pace)
    return algorithm.rule.finish(y, local)


def _stack(rows: list[Vectors]) -> Vectors:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
