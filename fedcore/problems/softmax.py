"""Softmax regression as what a compiled kernel needs: samples, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.federated import FederatedData, Ids
from fedcore.models.flat import Layout
from fedcore.problems.loss import CrossEntropy, Loss


@dataclass(frozen=True, slots=True)
class SoftmaxRegression:
    """The samples and who holds them, on one device; the model is one matrix, each row the weights and the bias of a class."""

    features: Tensor
    """[n, d]."""
    labels: Tensor
    """[n]."""
    order: Tensor
    """The samples that clients hold, client by client."""
    offsets: Ids
    """[N + 1] where each client's begin in the order."""
    shape: tuple[int, int]
    """C, d + 1."""
    l2: float
    scale: NDArray[np.float64]
    """[N] what each client's loss, l2 included, is multiplied by."""

    def rows(self, client: int) -> Tensor:
        """[n_i] which samples a client holds."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]


def softmax_regression(data: FederatedData, layout: Layout, loss: Loss, l2: float) -> SoftmaxRegression | None:
    """What a kernel needs of such a problem; None of any other, and where the samples are not seen as they are."""
    train = data.dataset.train
    if layout.depth != 1 or not isinstance(loss, CrossEntropy) or data.dataset.augmentation is not None:
        return None
    (shape,) = layout.shapes
    features = train.features.flatten(1).contiguous()
    return SoftmaxRegression(features, train.labels, data.order, data.offsets, (shape[0], shape[1]), l2, np.ones(len(data.sizes)))
