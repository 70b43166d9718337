"""Weighted sums of a cohort's deltas, taken during training, so that only one sum per group of
clients is held; and the pool of threads that trains them.

A group is trained by one thread, client by client; the sums of groups are added up in their order.
Groups follow from the cohort's work alone, so the bits of a sum depend neither on the threads nor
on other jobs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedcore.engine.assignment import Ids

if TYPE_CHECKING:
    from fedcore.engine.accelerated.cpu import Network, Numbers, Tasks


def run_on_threads(work: Callable[[], None], most: int) -> None:
    """Run `work` on all of the tensor library's threads, at most `most`, this one included."""
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
    """The thread pool of this process; a forked process has none of its parent's threads."""
    return ThreadPoolExecutor(count, thread_name_prefix="kernels")


GROUPS = 32
"""Largest number of groups: the cores that can work, and the partial sums to write and read."""
_PIECE = 1 << 14
"""Numbers that a thread adds up at a time; they stay in its cache."""


def groups(work: Ids, most: int = GROUPS) -> Ids:
    """[G + 1] the start of each group and the end of the last, for at most `most` groups of about
    equal `work` [M].

    Clients are in order of descending work, so a client with more than a group's share is alone.
    """
    share = (np.cumsum(work) - work) * most // max(1, int(work.sum()))
    return np.concatenate([[0], np.flatnonzero(share[1:] != share[:-1]) + 1, [len(work)]])


class StreamingSums:
    """[K, D] sums of one cohort's deltas."""

    def __init__(self, net: Network, weights: Tensor, work: Ids) -> None:
        """Sum with `weights` [K, M] over clients with `work` [M], by descending work."""
        from fedcore.engine.accelerated import cpu

        self._net, self._starts = net, groups(work)
        self._counts: Numbers = np.ascontiguousarray(weights.numpy().T)
        shape = len(self._starts) - 1, len(weights) * net.starts[-1]
        self._held: Numbers = cpu.allocate_aligned(prod(shape), self._counts.dtype).reshape(shape)

    def write(self, tasks: Tasks) -> Ids:
        """Write into the clients' tasks [M] the weights and addresses of the sums they add to.

        Returns the start of each group and the end of the last.
        """
        starts, held, counts = self._starts, self._held, self._counts
        tasks["summed"] = counts.shape[1]
        tasks["counts"] = counts.ctypes.data + counts.strides[0] * np.arange(len(tasks))
        tasks["fresh"][starts[:-1]] = 1
        tasks["sums"][starts[1:] - 1] = held.ctypes.data + held.strides[0] * np.arange(len(held))
        return starts

    def total(self) -> Tensor:
        """Return the sums [K, D], once all clients are trained."""
        from fedcore.engine.accelerated import cpu

        total, pieces = np.empty_like(self._held[0]), range(0, self._held.shape[1], _PIECE)
        waiting = iter(pieces)

        def add() -> None:
            for start in waiting:
                piece = slice(start, start + _PIECE)
                np.add.reduce(self._held[:, piece], axis=0, out=total[piece])

        run_on_threads(add, len(pieces))
        rows = total.reshape(-1, self._net.starts[-1])
        return torch.from_numpy(np.stack([cpu.unpad_parameters(self._net, row) for row in rows]))
