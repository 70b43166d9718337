"""The samples of a data set by class, shuffled, and how they are handed out."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def pools_of(labels: Ids, draw: np.random.Generator) -> list[Ids]:
    """The samples of each class, shuffled."""
    return [draw.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def deal(pools: list[Ids], sizes: Ids) -> list[Ids]:
    """Hand out sizes[i, c] samples of pool c to client i, in order."""
    ends = np.cumsum(sizes, axis=0)
    rows = zip(sizes, ends, strict=True)
    return [np.concatenate([pool[end - size : end] for pool, size, end in zip(pools, *row, strict=True)]) for row in rows]
