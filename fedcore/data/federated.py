"""Samples divided over clients, resident on one device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Samples:
    """Features [n, ...] and class labels [n], on the CPU, in float32 or float64."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class FederatedData:
    """Training samples grouped by client, and one test set for all."""

    features: Tensor
    """[n, ...]."""
    labels: Tensor
    """[n] class indices."""
    offsets: Ids
    """[N + 1]: client i holds the samples offsets[i]..offsets[i + 1]."""
    test: Samples
    classes: int
    source: str
    """What the data really are."""

    @property
    def sizes(self) -> Ids:
        """[N] samples of each client."""
        return np.diff(self.offsets)

    def to(self, device: str, dtype: torch.dtype) -> "FederatedData":
        """The same on another device and in another type."""
        test = Samples(self.test.features.to(device, dtype), self.test.labels.to(device))
        return FederatedData(self.features.to(device, dtype), self.labels.to(device), self.offsets, test, self.classes, self.source)


def group(train: Samples, parts: Sequence[Ids], test: Samples, classes: int, source: str) -> FederatedData:
    """Lay `train` out client by client; `parts` holds each client's sample indices."""
    order = torch.from_numpy(np.concatenate(parts))
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return FederatedData(train.features[order], train.labels[order], offsets, test, classes, source)
