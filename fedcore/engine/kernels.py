"""Local training of softmax regression in machine code.

Sums may be taken in any order, but not-a-number and infinity are kept, since a run that diverges must show.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Matrix = NDArray[np.floating]
Ids = NDArray[np.int64]

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"arcp", "contract", "nsz", "reassoc"}}


class Share(NamedTuple):
    """What one client trains on."""

    features: Matrix
    """[n, d]."""
    labels: Ids
    """[n]."""
    rows: Ids
    """[n_i] which of them the client holds."""
    batches: Ids
    """[tau, B] indices into rows, -1 is padding; or [1, B], seen in all steps."""
    scale: float
    """What the loss is multiplied by."""


class Recursion(NamedTuple):
    """v <- momentum v + g + shrink y + pull (y - x) + offset; y <- y - size v."""

    sizes: Matrix
    """[tau]."""
    offset: Matrix
    """[C, d + 1]."""
    pull: float
    shrink: float
    momentum: float
    compares: bool
    """Whether g is less the gradient at x over the same batch."""


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def train(y: Matrix, x: Matrix, share: Share, recursion: Recursion) -> None:
    """All local steps of one client, in place: y [C, d + 1] begins at the broadcast model x [C, d + 1]."""
    gradient, velocity = np.empty_like(y), np.zeros_like(y)
    for k in range(len(recursion.sizes)):
        _differentiate(y, x, share, k % len(share.batches), recursion.compares, gradient)
        _descend(y, x, gradient, velocity, k, recursion)


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _differentiate(y: Matrix, x: Matrix, share: Share, k: int, compares: bool, gradient: Matrix) -> None:
    """The gradient of the mean cross entropy over batch k, scaled."""
    gradient[:] = 0
    here, there = np.empty_like(y[:, 0]), np.empty_like(y[:, 0])
    batch = share.batches[k]
    weight = share.scale / y.dtype.type(np.sum(batch >= 0))
    for b in range(len(batch)):
        if batch[b] >= 0:
            row = share.rows[batch[b]]
            sample = share.features[row]
            _predict(y, sample, here)
            if compares:
                _predict(x, sample, there)
                here -= there
            else:
                here[share.labels[row]] -= 1
            _accumulate(gradient, sample, here, weight)


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _predict(model: Matrix, sample: Matrix, probabilities: Matrix) -> None:
    width = len(sample)
    for c in range(len(model)):
        score = model[c, width]
        for j in range(width):
            score += model[c, j] * sample[j]
        probabilities[c] = score
    top = probabilities.max()
    total = model.dtype.type(0)
    for c in range(len(model)):
        probabilities[c] = np.exp(probabilities[c] - top)
        total += probabilities[c]
    for c in range(len(model)):
        probabilities[c] /= total


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _accumulate(gradient: Matrix, sample: Matrix, error: Matrix, weight: float) -> None:
    width = len(sample)
    for c in range(len(gradient)):
        weighted = weight * error[c]
        for j in range(width):
            gradient[c, j] += weighted * sample[j]
        gradient[c, width] += weighted


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _descend(y: Matrix, x: Matrix, gradient: Matrix, velocity: Matrix, k: int, recursion: Recursion) -> None:
    size, pull, shrink, momentum = recursion.sizes[k], recursion.pull, recursion.shrink, recursion.momentum
    for c in range(y.shape[0]):
        for j in range(y.shape[1]):
            direction = gradient[c, j] + shrink * y[c, j] + pull * (y[c, j] - x[c, j]) + recursion.offset[c, j]
            velocity[c, j] = momentum * velocity[c, j] + direction
            y[c, j] -= size * velocity[c, j]
