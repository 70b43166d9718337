"""The engine `compiled`: each client's whole training in machine code, for dense networks under an affine rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedcore.core import Algorithm, Rule, Upload
from fedcore.engine.affine import adds, factors, offsets, pull
from fedcore.engine.assignment import Ids, Job
from fedcore.engine.gpu import launch
from fedcore.engine.gpu.tiling import fits
from fedcore.problems import Problem
from fedcore.problems.dense import LossName

if TYPE_CHECKING:
    from fedcore.engine.kernels import Numbers, Tasks


def suits(algorithm: Algorithm, problem: Problem) -> bool:
    """Whether this engine can train `problem` by `algorithm`."""
    data = problem.dense
    return data is not None and pull(algorithm.rule) is not None and (data.features.device.type == "cpu" or fits(data))


def compiled(jobs: Sequence[Job]) -> list[Upload]:
    """Client by client, those of all jobs in one line, longest first, on as many threads as the tensor library has.

    Neither the threads nor the other jobs change a bit. On a GPU they are the programs of a launch.
    """
    if jobs[0].assignment.local.x.is_cuda:
        return launch.train(jobs)
    cohorts = [_Cohort(job) for job in jobs]
    for kind, alike in groupby(sorted(cohorts, key=lambda cohort: cohort.kind), key=lambda cohort: cohort.kind):
        _train(list(alike), *kind)
    return [cohort.upload() for cohort in cohorts]


def _train(cohorts: list[_Cohort], widths: tuple[int, ...], loss: LossName, dtype: str) -> None:
    """Cohorts whose networks have the same widths, loss and type of numbers."""
    # Here, because only this engine needs a compiler.
    from fedcore.engine import kernels

    net = kernels.network(widths, np.dtype(dtype).itemsize, max(cohort.widest for cohort in cohorts))
    # What is padded must live until all are trained.
    models = [kernels.padded(net, cohort.x) for cohort in cohorts]
    tasks = np.concatenate([cohort.tasks(kernels.TASK, model) for cohort, model in zip(cohorts, models, strict=True)])
    tasks, counter = tasks[np.argsort(-tasks["steps"] * tasks["width"], kind="stable")], np.zeros(1, np.int64)
    _at_once(lambda: kernels.train(net, loss, tasks, counter), len(tasks))


class _Cohort:
    """A job's clients while they train: keeps alive what the kernels find by address."""

    def __init__(self, job: Job) -> None:
        """Lay out the results [M, D] and what is the same in all steps."""
        data, assignment, rule = job.problem.dense, job.assignment, job.algorithm.rule
        assert data is not None
        self._job, self._data = job, data
        self.x: Numbers = assignment.local.x.numpy()
        self.kind = data.widths, data.loss, self.x.dtype.str
        self._batches = [np.ascontiguousarray(batch[:1] if batch.strides[0] == 0 else batch) for batch in assignment.batches]
        self.widest = max(batch.shape[1] for batch in self._batches)
        self._results = assignment.local.x.new_empty(len(assignment.clients), len(self.x))
        self._offsets = offsets(rule, assignment.local).contiguous() if adds(rule) else None
        self._sizes = assignment.sizes.first_of(int(assignment.steps.max()))
        # Nearly all rules send y - x as it is, which then is all that is written.
        self._only_delta = type(rule).finish is Rule.finish

    def tasks(self, kind: np.dtype[Any], x: Numbers) -> Tasks:
        """One for each client, of the type `kind`; x is the model in padded rows."""
        data, job = self._data, self._job
        assignment, algorithm = job.assignment, job.algorithm
        tasks = np.zeros(len(assignment.clients), kind)
        tasks["features"], tasks["labels"] = data.features.data_ptr(), data.labels.data_ptr()
        tasks["rows"] = data.order.data_ptr() + 8 * data.offsets[assignment.clients]
        tasks["held"] = job.problem.sizes[assignment.clients]
        tasks["batches"] = [batch.ctypes.data for batch in self._batches]
        tasks["kinds"], tasks["width"] = np.array([batch.shape for batch in self._batches]).T
        tasks["steps"], tasks["sizes"] = assignment.steps, self._sizes.ctypes.data
        tasks["pace"] = np.asarray(algorithm.rule.pace(assignment.local.steps)).reshape(-1)
        tasks["x"], tasks["out"], tasks["delta"] = x.ctypes.data, _addresses(self._results), self._only_delta
        tasks["offset"] = 0 if self._offsets is None else _addresses(self._offsets)
        tasks["compares"], tasks["scale"] = algorithm.rule.compares(), data.scale[assignment.clients]
        for scale in np.unique(tasks["scale"]):
            tasks[["pull", "shrink", "momentum"]][tasks["scale"] == scale] = factors(algorithm, scale * data.l2)
        return tasks

    def upload(self) -> Upload:
        """What the clients send once they are trained."""
        if self._only_delta:
            return Upload(delta=self._results)
        return self._job.algorithm.rule.finish(self._results, self._job.assignment.local)


def _addresses(rows: torch.Tensor) -> Ids:
    """Of each of the rows [M, D]."""
    return rows.data_ptr() + rows.element_size() * rows.shape[1] * np.arange(len(rows))


def _at_once(work: Callable[[], None], most: int) -> None:
    """The same on as many threads as the tensor library has, and at most so many; this one takes part."""
    others = min(torch.get_num_threads(), most) - 1
    if others <= 0:
        work()
        return
    pending = [_threads(others, os.getpid()).submit(work) for _ in range(others)]
    work()
    for done in pending:
        done.result()


@lru_cache(maxsize=4)
def _threads(count: int, _process: int) -> ThreadPoolExecutor:
    """Threads that wait from round to round; a process that is forked has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="kernels")
