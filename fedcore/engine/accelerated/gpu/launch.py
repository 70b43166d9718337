"""Launch the training of all runs' clients at once, without waiting and without reading back;
transfers to a device.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import ClientUpdate
from fedcore.engine.accelerated.gpu.plan import data_of, plan
from fedcore.engine.accelerated.gpu.tiling import shape_of, shared_memory, tiling
from fedcore.engine.assignment import Job
from fedcore.engine.local_solver import has_offset, offsets

ALIGNMENT = 16
"""Bytes; as wide as a GPU's loads."""


def sent(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Copy the arrays to `device` in one transfer that the host does not wait for."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    bounds = list(accumulate((-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays), initial=0))
    # From pinned memory, which PyTorch keeps until the transfer is over, the host goes on at once.
    packed = torch.empty(bounds[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for array, start in zip(arrays, bounds, strict=False):
        packed.numpy()[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    moved = packed.to(device, non_blocking=True)
    return [
        moved[start : start + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for array, (start, _) in zip(arrays, pairwise(bounds), strict=True)
    ]


def train(jobs: Sequence[Job]) -> list[ClientUpdate]:
    """Train together the runs that agree in shape, precision and gradient comparison; the longest
    clients first.
    """
    indices = sorted(range(len(jobs)), key=lambda index: _kind(jobs[index]))
    models: dict[int, Tensor] = {}
    for _, alike in groupby(indices, key=lambda index: _kind(jobs[index])):
        group = list(alike)
        models |= zip(group, _launched([jobs[index] for index in group]), strict=True)
    return [job.algorithm.rule.finish(models[index], job.work.local) for index, job in enumerate(jobs)]


def _launched(jobs: list[Job]) -> Sequence[Tensor]:
    """Return the models [M, D] of each job's clients after their last step."""
    # Here, because only PyTorch's CUDA builds bring Triton.
    from fedcore.engine.accelerated.gpu import kernels

    (outputs, columns), compares = (
        shape_of(data_of(jobs[0])),
        jobs[0].algorithm.rule.subtracts_gradient_at_x(),
    )
    x = torch.stack([job.work.local.x for job in jobs])
    chip = tiling((outputs, columns), max(batches.shape[1] for job in jobs for batches in job.work.batches))
    planned = plan(jobs, chip.samples, _numpy(x.dtype))
    *steps, pulls, held = sent(planned, x.device)
    features, targets = _samples(jobs, held, compares)
    leaning = bool(planned.pulls.any()) or any(has_offset(job.algorithm.rule) for job in jobs)
    counts = [len(job.work.clients) for job in jobs]
    models = x.new_empty(sum(counts), outputs * columns)
    leans = (
        torch.cat([_lean(job, pull) for job, pull in zip(jobs, torch.split(pulls, counts), strict=True)])
        if leaning
        else models
    )
    options = chip.options(x.element_size(), shared_memory(x.device))
    with torch.cuda.device(x.get_device()):
        kernels.train[(len(models),)](
            *steps,
            features,
            targets,
            x,
            leans,
            models,
            outputs,
            columns - 1,
            compares,
            leaning,
            *chip,
            **options,
        )
    return torch.split(models, counts)


def _samples(jobs: Sequence[Job], held: Tensor, compares: bool) -> tuple[Tensor, Tensor]:
    """Concatenate the clients' samples: features [n, d], and labels [n] or the probabilities at x
    [n, C].
    """
    features, targets = [], []
    for job, places in zip(jobs, torch.split(held, [_held(job) for job in jobs]), strict=True):
        data = data_of(job)
        rows = data.order.index_select(0, places)
        features.append(data.features.index_select(0, rows))
        if compares:
            weights = job.work.local.x.view(shape_of(data))
            targets.append(torch.addmm(weights[:, -1], features[-1], weights[:, :-1].T).softmax(1))
        else:
            targets.append(data.labels.index_select(0, rows))
    return torch.cat(features), torch.cat(targets)


def _held(job: Job) -> int:
    offsets, clients = data_of(job).offsets, job.work.clients
    return int((offsets[clients + 1] - offsets[clients]).sum())


def _lean(job: Job, pulls: Tensor) -> Tensor:
    """Return the constant [M, D] added to every gradient once pull (y - x) is expanded."""
    return offsets(job.algorithm.rule, job.work.local) - pulls * job.work.local.x


def _kind(job: Job) -> tuple[tuple[int, int], str, bool]:
    return shape_of(data_of(job)), str(job.work.local.x.dtype), job.algorithm.rule.subtracts_gradient_at_x()


def _numpy(dtype: torch.dtype) -> np.dtype[np.floating]:
    return np.dtype(str(dtype).removeprefix("torch."))
