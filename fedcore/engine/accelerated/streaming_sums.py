"""Weighted sums of a cohort's deltas, taken while its clients train: what is held is a sum for each
group of clients.

A group is what one thread trains one after another; the sums of groups are added up in their order.
Who is in which group follows from the cohort's work alone, so the bits of a sum depend neither on
the threads nor on whoever else is trained.

Threads that wait from round to round.
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
    """The same on as many threads as the tensor library has, and at most so many.

    This one takes part.
    """
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
    """A process that is forked has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="kernels")


GROUPS = 32
"""At most: so many cores have something to do, and so many sums are written and read again."""
_PIECE = 1 << 14
"""Numbers that a thread adds up at a time; they stay in its cache."""


def groups(work: Ids) -> Ids:
    """[G + 1] where each group begins, and where the last ends, given the `work` [M] of each
    client: shares about alike.

    Clients come in this order, by descending work, so whoever has more than a share is alone.
    """
    share = (np.cumsum(work) - work) * GROUPS // max(1, int(work.sum()))
    return np.concatenate([[0], np.flatnonzero(share[1:] != share[:-1]) + 1, [len(work)]])


class StreamingSums:
    """[K, D] sums of one cohort's deltas."""

    def __init__(self, net: Network, weights: Tensor, work: Ids) -> None:
        """With `weights` [K, M] of clients with `work` [M], by descending work."""
        from fedcore.engine.accelerated import cpu

        self._net, self._starts = net, groups(work)
        self._counts: Numbers = np.ascontiguousarray(weights.numpy().T)
        shape = len(self._starts) - 1, len(weights) * net.starts[-1]
        self._held: Numbers = cpu.aligned(prod(shape), self._counts.dtype).reshape(shape)

    def write(self, tasks: Tasks) -> Ids:
        """Say in the tasks [M] of the clients what they add to, and where it goes.

        Returns where each group begins and the last ends.
        """
        starts, held, counts = self._starts, self._held, self._counts
        tasks["summed"] = counts.shape[1]
        tasks["counts"] = counts.ctypes.data + counts.strides[0] * np.arange(len(tasks))
        tasks["fresh"][starts[:-1]] = 1
        tasks["sums"][starts[1:] - 1] = held.ctypes.data + held.strides[0] * np.arange(len(held))
        return starts

    def total(self) -> Tensor:
        """[K, D], once all are trained."""
        from fedcore.engine.accelerated import cpu

        total, pieces = np.empty_like(self._held[0]), range(0, self._held.shape[1], _PIECE)
        waiting = iter(pieces)

        def add() -> None:
            for start in waiting:
                piece = slice(start, start + _PIECE)
                np.add.reduce(self._held[:, piece], axis=0, out=total[piece])

        run_on_threads(add, len(pieces))
        rows = total.reshape(-1, self._net.starts[-1])
        return torch.from_numpy(np.stack([cpu.plain(self._net, row) for row in rows]))
