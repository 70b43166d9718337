"""What data a run was trained on, in one number."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedcore.data.federated import Dataset


def checksum(dataset: Dataset) -> str:
    """SHA-256 over the arrays of a data set on a CPU: training features and labels, those for testing, and whose each sample is.

    Each array counts by its type and shape as `<f4 (60000, 1, 28, 28)`, a line feed, and its bytes, the last axis fastest.
    """
    parts = [part for samples in (dataset.train, dataset.test) for part in (samples.features.numpy(), samples.labels.numpy())]
    keys: list[NDArray[np.int64]] = [] if dataset.keys is None else [dataset.keys.train, dataset.keys.test]
    digest = hashlib.sha256()
    for array in (*parts, *keys):
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()
