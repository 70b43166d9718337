"""The engine `compiled`: each client's whole training in machine code, for dense networks under an
affine rule and SGD, on CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedcore.core import Algorithm, ClientUpdate
from fedcore.engine.accelerated.streaming_sums import StreamingSums, run_on_threads
from fedcore.engine.assignment import AggregatedUpdate, Ids, Job, Result
from fedcore.engine.local_program import LocalProgram
from fedcore.engine.local_solver import factors, has_offset, offsets, step_size_scales
from fedcore.problems import TrainingProblem
from fedcore.problems.dense import LossName

if TYPE_CHECKING:
    from fedcore.engine.accelerated.cpu import Network, Numbers, Tasks


def suits(algorithm: Algorithm, problem: TrainingProblem) -> bool:
    """Return True if this engine can train `problem` with `algorithm`."""
    data = problem.dense
    if data is None or not (algorithm.is_affine() and algorithm.starts_at_x()):
        return False
    return data.features.device.type == "cpu"


def compiled(jobs: Sequence[Job]) -> Sequence[Result]:
    """Train the clients of all jobs one by one, the longest first, on the tensor library's threads.

    Neither the number of threads nor the other jobs change a bit of a result.
    """
    cohorts = [_Cohort(job) for job in jobs]
    for kind, alike in groupby(
        sorted(cohorts, key=lambda cohort: cohort.kind), key=lambda cohort: cohort.kind
    ):
        _train(list(alike), *kind)
    return [cohort.result() for cohort in cohorts]


def _train(cohorts: list[_Cohort], widths: tuple[int, ...], loss: LossName, dtype: str) -> None:
    """Train cohorts whose networks have the same widths, loss and data type."""
    # Here, because only this engine needs a compiler.
    from fedcore.engine.accelerated import cpu

    net = cpu.make_network(widths, np.dtype(dtype).itemsize, max(cohort.widest for cohort in cohorts))
    # What is padded must live until all are trained.
    models = [[cpu.pad_parameters(net, x) for x in cohort.starts] for cohort in cohorts]
    tasks, starts = _line([cohort.tasks(net, own) for cohort, own in zip(cohorts, models, strict=True)])
    counter = np.zeros(1, np.int64)
    run_on_threads(lambda: cpu.train(net, loss, tasks, starts, counter), len(starts) - 1)


def _line(parts: Sequence[tuple[Tasks, Ids]]) -> tuple[Tasks, Ids]:
    """Order the groups of all cohorts by descending work.

    Returns for each part its tasks, the start of each group, and the end of the last group.
    """
    if len(parts) == 1:
        return parts[0]
    work = np.concatenate(
        [np.add.reduceat(tasks["steps"] * tasks["width"], starts[:-1]) for tasks, starts in parts]
    )
    lengths, order = (
        np.concatenate([np.diff(starts) for _, starts in parts]),
        np.argsort(-work, kind="stable"),
    )
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    tasks = np.concatenate([tasks for tasks, _ in parts])
    return tasks[np.argsort(np.repeat(place, lengths), kind="stable")], np.cumsum([0, *lengths[order]])


class _Cohort:
    """The clients of one job in training; keeps alive the memory that kernels find by address."""

    def __init__(self, job: Job) -> None:
        """Allocate the results [M, D] if they are wanted, and prepare the constants of all steps."""
        data, assignment = job.problem.dense, job.work
        rule, models = job.algorithm.rule, job.algorithm.models
        assert data is not None
        self._job, self._data = job, data
        x: Numbers = assignment.local.x.numpy()
        # One model for all clients, or one for each.
        self.starts = x[None] if x.ndim == 1 else x
        self.kind = data.widths, data.loss, x.dtype.str
        self._batches = [
            np.ascontiguousarray(batch[:1] if batch.strides[0] == 0 else batch)
            for batch in assignment.batches
        ]
        self.widest = max(batch.shape[1] for batch in self._batches)
        self._results = (
            assignment.local.x.new_empty(len(assignment.clients), x.shape[-1]) if job.each else None
        )
        self._sums: StreamingSums | None = None
        self._offsets = offsets(rule, assignment.local).contiguous() if has_offset(rule) else None
        self._sizes = assignment.sizes.first_of(int(assignment.steps.max()))
        # Nearly all rules send y - x as it is, which then is all that is written.
        self._only_delta = not (rule.sent or models.memory) and models.stays is None

    def tasks(self, net: Network, models: Sequence[Numbers]) -> tuple[Tasks, Ids]:
        """Return a task per client by descending work, the start of each group, and the end of the
        last; `models` are the rows of `starts` with padding.
        """
        from fedcore.engine.accelerated.cpu import TASK

        data, job, assignment, rule = self._data, self._job, self._job.work, self._job.algorithm.rule
        work = assignment.steps * [batch.shape[1] for batch in self._batches]
        order = np.argsort(-work, kind="stable")
        clients, batches = assignment.clients[order], [self._batches[row] for row in order.tolist()]
        tasks = np.zeros(len(clients), TASK)
        tasks["features"], tasks["labels"] = data.features.data_ptr(), data.labels.data_ptr()
        tasks["rows"] = data.order.data_ptr() + 8 * data.offsets[clients]
        tasks["held"] = job.problem.sizes[clients]
        tasks["batches"] = [batch.__array_interface__["data"][0] for batch in batches]
        tasks["kinds"], tasks["width"] = np.array([batch.shape for batch in batches]).T
        tasks["steps"], tasks["sizes"] = assignment.steps[order], self._sizes.ctypes.data
        tasks["pace"] = step_size_scales(rule, assignment.steps)[order]
        places = np.array([model.ctypes.data for model in models], np.uint64)
        tasks["x"] = np.broadcast_to(places, len(order))[order] if len(places) > 1 else places
        tasks["delta"] = self._only_delta
        tasks["out"] = 0 if self._results is None else _addresses(self._results)[order]
        tasks["offset"] = 0 if self._offsets is None else _addresses(self._offsets)[order]
        tasks["compares"], tasks["scale"] = "gradient_at_x" in rule.needs(), data.scale[clients]
        known = {scale: factors(job.algorithm, scale * data.l2) for scale in set(tasks["scale"].tolist())}
        tasks["pull"], tasks["shrink"], tasks["momentum"] = np.array(
            [known[scale] for scale in tasks["scale"].tolist()]
        ).T
        if job.sums is None:
            return tasks, np.arange(len(tasks) + 1)
        self._sums = StreamingSums(net, job.sums[:, torch.from_numpy(order)], work[order])
        return tasks, self._sums.write(tasks)

    def result(self) -> Result:
        """Return the job's result, once its clients are trained."""
        if self._sums is not None:
            return AggregatedUpdate(self._sums.total(), self._results)
        assert self._results is not None
        if self._only_delta:
            return ClientUpdate(delta=self._results)
        return LocalProgram.of(self._job).finish(self._results, self._job.work.local)


def _addresses(rows: torch.Tensor) -> Ids:
    """Return the address of each row of `rows` [M, D]."""
    return rows.data_ptr() + rows.element_size() * rows.shape[1] * np.arange(len(rows))
