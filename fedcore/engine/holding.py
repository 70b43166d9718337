"""Where rows of numbers lie: in memory or, beyond a size, in a file that is mapped into it and goes with the process."""

import os
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Room(NamedTuple):
    """What may lie in memory, and where the rest goes."""

    memory_bytes: float = float("inf")
    folder: Path | None = None
    """Where files lie; None: the system's folder for temporary ones."""

    def shared(self, count: int) -> "Room":
        """An equal part of it for each of so many."""
        return self._replace(memory_bytes=self.memory_bytes / max(1, count))

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """So many, of the type and on the device of `like`; those of a GPU stay there."""
        if like.is_cuda or prod(shape) * like.element_size() <= self.memory_bytes:
            return like.new_zeros(shape)
        return _mapped(shape, like, self.folder)

    def moved(self, values: Tensor, like: Tensor) -> Tensor:
        """`values` as `like` is, where there is room for them."""
        if like.is_cuda or values.nbytes <= self.memory_bytes:
            return values.to(like)
        return self.zeros(tuple(values.shape), like).copy_(values)


def _mapped(shape: tuple[int, ...], like: Tensor, folder: Path | None) -> Tensor:
    """Zeros in a file without a name, which the system deletes with the last process that has it; raises OSError where the disk is full."""
    with TemporaryFile(dir=folder) as file:
        size = prod(shape) * like.element_size()
        if hasattr(os, "posix_fallocate"):
            # To be told now: a write to a mapped page that the disk has no room for ends the process.
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return torch.from_numpy(np.memmap(file, like.new_empty(0).numpy().dtype, "r+", shape=shape))
