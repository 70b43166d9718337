"""Dense networks as kernels see them: widths, loss, samples, and the clients that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.federated import FederatedData, Ids
from fedcore.models.flat import Layout
from fedcore.models.losses import CrossEntropy, Loss, SquaredError

LossName = Literal["cross_entropy", "squared_error", "squared_error_of_reals"]
"""Labels are classes, classes as one-hot vectors, or real numbers."""


@dataclass(frozen=True, slots=True)
class DenseNetwork:
    """Linear layers with ReLU between them.

    Each is a matrix in the model, whose rows are the weights and the bias of an output.
    """

    widths: tuple[int, ...]
    """Widths of the input and of each layer's output; two for softmax regression."""
    loss: LossName
    features: Tensor
    """[n, d]."""
    labels: Tensor
    """[n]."""
    order: Tensor
    """The samples that clients hold, client by client."""
    offsets: Ids
    """[N + 1] where each client's begin in the order."""
    l2: float
    scale: NDArray[np.float64]
    """[N] what each client's loss, l2 included, is multiplied by."""

    def rows(self, client: int) -> Tensor:
        """[n_i] the samples that a client holds."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]


def dense_network(data: FederatedData, layout: Layout, loss: Loss, l2: float) -> DenseNetwork | None:
    """Describe `problem` as a dense network.

    None for any other problem or loss, and if samples are not used as they are.
    """
    train = data.dataset.train
    if not layout.depth or not train.features.is_floating_point() or data.dataset.augmentation is not None:
        return None
    widths = (layout.shapes[0][1] - 1, *(shape[0] for shape in layout.shapes))
    name = _name(loss, train.labels)
    if name is None or (name == "squared_error_of_reals" and widths[-1] != 1):
        return None
    features = train.features.flatten(1).contiguous()
    return DenseNetwork(
        widths,
        name,
        features,
        train.labels.contiguous(),
        data.order,
        data.offsets,
        l2,
        np.ones(len(data.sizes)),
    )


def _name(loss: Loss, labels: Tensor) -> LossName | None:
    """Return the loss as kernels know it; None for any other."""
    if loss == CrossEntropy():
        return "cross_entropy"
    if type(loss) is not SquaredError:
        return None
    return "squared_error_of_reals" if labels.is_floating_point() else "squared_error"
