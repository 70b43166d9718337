"""Weighted sums of a cohort's deltas, taken while its clients train: what is held is a sum for each group of clients.

A group is what one thread trains one after another; the sums of groups are added up in their order. Who is in which group follows
from the cohort's work alone, so the bits of a sum depend neither on the threads nor on whoever else is trained.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedcore.engine.assignment import Ids
from fedcore.engine.threads import at_once

if TYPE_CHECKING:
    from fedcore.engine.kernels import Network, Numbers, Tasks

GROUPS = 32
"""At most: so many cores have something to do, and so many sums are written and read again."""
_PIECE = 1 << 14
"""Numbers that a thread adds up at a time; they stay in its cache."""


def groups(work: Ids) -> Ids:
    """[M] the group of each client, numbered from 0, given the `work` [M] of each: shares about alike for those who come in this order."""
    before = (np.cumsum(work) - work) * GROUPS // max(1, int(work.sum()))
    return np.cumsum(np.diff(before, prepend=0) > 0)


class Sums:
    """[K, D] sums of one cohort's deltas, with weights [K, M]."""

    def __init__(self, net: Network, weights: Tensor, group: Ids) -> None:
        """For clients in groups [M], those of one after those of another."""
        from fedcore.engine import kernels

        self._net, self._group = net, group
        self._counts: Numbers = np.ascontiguousarray(weights.numpy().T)
        shape = int(group[-1]) + 1, len(weights) * net.starts[-1]
        self._held: Numbers = kernels.aligned(prod(shape), self._counts.dtype).reshape(shape)

    def write(self, tasks: Tasks) -> None:
        """Say in the tasks [M] of the clients where they add what they change."""
        tasks["summed"] = self._counts.shape[1]
        tasks["counts"] = self._counts.ctypes.data + self._counts.strides[0] * np.arange(len(tasks))
        tasks["fresh"], last = np.diff(self._group, prepend=-1), np.diff(self._group, append=len(tasks)) > 0
        tasks["sums"][last] = self._held.ctypes.data + self._held.strides[0] * self._group[last]

    def total(self) -> Tensor:
        """[K, D], once all are trained."""
        from fedcore.engine import kernels

        total, pieces = np.empty_like(self._held[0]), range(0, self._held.shape[1], _PIECE)
        waiting = iter(pieces)

        def add() -> None:
            for start in waiting:
                piece = slice(start, start + _PIECE)
                np.add.reduce(self._held[:, piece], axis=0, out=total[piece])

        at_once(add, len(pieces))
        rows = total.reshape(-1, self._net.starts[-1])
        return torch.from_numpy(np.stack([kernels.plain(self._net, row) for row in rows]))
