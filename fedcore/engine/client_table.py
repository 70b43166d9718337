"""Client memory between rounds, as tables of rows; a client that never took part costs nothing.

Rows are in memory or, beyond a size, in a mapped file that disappears with the process.
"""

import os
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class MemoryBudget(NamedTuple):
    """How much may be held in memory, and where the rest goes."""

    memory_bytes: float = float("inf")
    folder: Path | None = None
    """Folder of the table's files; None: the system's folder for temporary files."""

    def split(self, count: int) -> "MemoryBudget":
        """Return an equal part of the budget for each of several tables."""
        return self._replace(memory_bytes=self.memory_bytes / max(1, count))

    def allocate(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Allocate zeros with the type and device of `like`; on a GPU they stay in its memory."""
        if like.is_cuda or prod(shape) * like.element_size() <= self.memory_bytes:
            return like.new_zeros(shape)
        return _mapped(shape, like, self.folder)

    def adopt(self, values: Tensor, like: Tensor) -> Tensor:
        """Move `values` to the device of `like`, if the budget allows."""
        if like.is_cuda or values.nbytes <= self.memory_bytes:
            return values.to(like)
        return self.allocate(tuple(values.shape), like).copy_(values)


CLIENT_MEMORY = MemoryBudget(2 << 30)
"""Memory for the state of a run's clients; the rest lies in a temporary file."""


def _mapped(shape: tuple[int, ...], like: Tensor, folder: Path | None) -> Tensor:
    """Map zeros in a file without a name, which the system deletes with the last process that has
    it open.

    Raises OSError if the disk is full.
    """
    with TemporaryFile(dir=folder) as file:
        size = prod(shape) * like.element_size()
        if hasattr(os, "posix_fallocate"):
            # To be told now: a write to a mapped page that the disk has no room for ends the
            # process.
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return torch.from_numpy(np.memmap(file, like.new_empty(0).numpy().dtype, "r+", shape=shape))


Ids = NDArray[np.int64]
_ABSENT = -1


class ClientTable:
    """Named tensors per client, such as vectors [D]. Changes in place.

    Rows are stored in the order in which clients first took part, in blocks that double when full.
    """

    def __init__(
        self, start: Mapping[str, Tensor], population: int, budget: MemoryBudget | None = None
    ) -> None:
        """Keep tensors by name for each of `population` clients.

        `start` is what they are, of any shape, for a client never written.

        They lie where there is `room` for them, or else in memory; that changes no bit.
        """
        self._room = (budget or MemoryBudget()).split(len(start))
        self._slots = np.full(population, _ABSENT, np.int64)
        self._ids = np.empty(0, np.int64)
        self._start = dict(start)
        self._rows = {name: value.new_zeros((0, *value.shape)) for name, value in start.items()}

    def gather(self, clients: Ids, names: Collection[str] | None = None) -> Mapping[str, Tensor]:
        """The tensors [M, ...] of `clients` [M], by name; of all `names` by default."""
        known = torch.from_numpy(self._slots[clients] != _ABSENT)
        slots = torch.from_numpy(np.maximum(self._slots[clients], 0))
        return {
            name: self._gather_one(name, rows, slots.to(rows.device), known.to(rows.device))
            for name, rows in self._rows.items()
            if names is None or name in names
        }

    def scatter(self, clients: Ids, vectors: Mapping[str, Tensor]) -> None:
        """Store `vectors` [M, ...] of distinct `clients` [M]; every name of the table must be
        given.
        """
        if not self._rows:
            return
        if missing := sorted(self._rows.keys() - vectors.keys()):
            raise TypeError(f"clients keep {missing[0]!r} between rounds, but `remember` does not return it")
        self._admit(clients)
        slots = torch.from_numpy(self._slots[clients])
        for name, rows in self._rows.items():
            rows[slots.to(rows.device)] = vectors[name]

    def state(self) -> dict[str, Tensor]:
        """Ids and rows of the clients that took part, as tensors by name."""
        count = len(self._ids)
        return {"ids": torch.from_numpy(self._ids.copy())} | {
            f"rows.{name}": rows[:count] for name, rows in self._rows.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the table from `state`."""
        self._ids = state["ids"].numpy().copy()
        self._slots[:] = _ABSENT
        self._slots[self._ids] = np.arange(len(self._ids))
        self._rows = {
            name: self._room.adopt(state[f"rows.{name}"], rows) for name, rows in self._rows.items()
        }

    def _gather_one(self, name: str, rows: Tensor, slots: Tensor, known: Tensor) -> Tensor:
        start = self._start[name]
        if not len(rows):
            return start.repeat(len(slots), *[1] * start.dim())
        return torch.where(known.view(-1, *[1] * start.dim()), rows[slots], start)

    def _admit(self, clients: Ids) -> None:
        new = clients[self._slots[clients] == _ABSENT]
        ids = np.concatenate([self._ids, new])
        for name, rows in self._rows.items():
            if len(ids) > len(rows):
                grown = self._room.allocate((max(len(ids), 2 * len(rows)), *rows.shape[1:]), rows)
                grown[: len(rows)] = rows
                self._rows[name] = grown
        self._slots[new], self._ids = np.arange(len(self._ids), len(ids)), ids
