"""Samples, and which client holds which of them; resident on one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Samples:
    """Features [n, ...] and labels [n]: classes, or real numbers in the type of the features."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str, dtype: torch.dtype) -> Samples:
        """The same on another device, all real numbers in another type."""
        real = self.labels.is_floating_point()
        return Samples(self.features.to(device, dtype), self.labels.to(device, dtype if real else None))

    def take(self, rows: Tensor) -> Samples:
        """A copy of the samples `rows` [...]: features [..., *shape] and labels [...]."""
        flat = rows.flatten()
        features, labels = (torch.unflatten(part.index_select(0, flat), 0, rows.shape) for part in (self.features, self.labels))
        return Samples(features, labels)

    def batches(self, length: int) -> Iterator[Samples]:
        """All samples in order, at most `length` at a time, as views."""
        pairs = zip(torch.split(self.features, length), torch.split(self.labels, length), strict=True)
        return (Samples(features, labels) for features, labels in pairs)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set in one piece."""

    train: Samples
    test: Samples
    source: str
    """What the data really are."""

    def to(self, device: str, dtype: torch.dtype) -> Dataset:
        """The same on another device, the features in another type."""
        return Dataset(self.train.to(device, dtype), self.test.to(device, dtype), self.source)


@dataclass(frozen=True)
class FederatedData:
    """A data set divided over clients; the samples themselves may be shared with other divisions."""

    dataset: Dataset
    order: Tensor
    """[n] the training samples that clients hold, client by client."""
    offsets: Ids
    """[N + 1]: client i holds the samples order[offsets[i] : offsets[i + 1]]."""

    @property
    def sizes(self) -> Ids:
        """[N] training samples of each client."""
        return np.diff(self.offsets)

    def to(self, device: str, dtype: torch.dtype) -> FederatedData:
        """The same on another device, the features in another type."""
        return FederatedData(self.dataset.to(device, dtype), self.order.to(device), self.offsets)

    def rows(self, client: int) -> Tensor:
        """[n_i] which training samples a client holds."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def held(self, length: int) -> Iterator[Samples]:
        """The samples of all clients, in any order, at most `length` at a time."""
        train = self.dataset.train
        if len(self.order) == len(train):
            return train.batches(length)
        return (train.take(rows) for rows in torch.split(self.order, length))


def divide(dataset: Dataset, parts: Sequence[Ids]) -> FederatedData:
    """Give client i the training samples parts[i]."""
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    order = torch.from_numpy(np.concatenate(parts))
    return FederatedData(dataset, order.to(dataset.train.labels.device), offsets)
