"""The samples of a data set by class, shuffled, and how they are handed out."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def pools_of(labels: Ids, draw: np.random.Generator) -> list[Ids]:
    """The samples of each class, shuffled."""
    return [draw.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def deal(pools: list[Ids], sizes: Ids) -> list[Ids]:
    """Hand out sizes[i, c] samples of pool c to client i, in order."""
    lengths = np.array([len(pool) for pool in pools])
    starts = np.cumsum(lengths) - lengths + np.cumsum(sizes, axis=0) - sizes
    return pieces(np.concatenate(pools), starts, sizes)


def pieces(samples: Ids, starts: Ids, sizes: Ids) -> list[Ids]:
    """Client i holds samples[starts[i, p] :][: sizes[i, p]] of every p, in order."""
    lengths = sizes.ravel()
    places = np.arange(lengths.sum()) + np.repeat(starts.ravel() - (np.cumsum(lengths) - lengths), lengths)
    return np.split(samples[places], np.cumsum(sizes.sum(1))[:-1])
