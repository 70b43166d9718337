"""Softmax regression on this machine's CPU, as plain arrays for a compiled kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.data.federated import FederatedData, Ids
from fedcore.models.flat import Layout
from fedcore.problems.loss import CrossEntropy, Loss


@dataclass(frozen=True, slots=True)
class SoftmaxRegression:
    """Views of the samples and of who holds them; the model is one matrix, each row the weights and the bias of a class."""

    features: NDArray[np.floating]
    """[n, d]."""
    labels: Ids
    """[n]."""
    order: Ids
    """The samples that clients hold, client by client."""
    offsets: Ids
    """[N + 1] where each client's begin in the order."""
    shape: tuple[int, int]
    """C, d + 1."""
    l2: float
    scale: NDArray[np.float64]
    """[N] what each client's loss, l2 included, is multiplied by."""

    def rows(self, client: int) -> Ids:
        """[n_i] which samples a client holds."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]


def softmax_regression(data: FederatedData, layout: Layout, loss: Loss, l2: float) -> SoftmaxRegression | None:
    """The arrays of such a problem; None of any other, and where they are not in this machine's own memory or not seen as they are."""
    train = data.dataset.train
    elsewhere = train.features.device.type != "cpu" or data.dataset.augmentation is not None
    if layout.depth != 1 or not isinstance(loss, CrossEntropy) or elsewhere:
        return None
    (shape,) = layout.shapes
    features = train.features.flatten(1).contiguous().numpy()
    return SoftmaxRegression(
        features, train.labels.numpy(), data.order.numpy(), data.offsets, (shape[0], shape[1]), l2, np.ones(len(data.sizes))
    )
