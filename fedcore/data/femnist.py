"""FEMNIST: handwritten characters by writer, from LEAF's JSON files."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.federated import Dataset, Ids
from fedcore.data.leaf import read_leaf
from fedcore.spec.dataset import Femnist

LETTER_A, LETTER_J = 36, 45
"""LEAF numbers the digits from 0, the upper-case letters from 10 and the lower-case ones from 36."""


def femnist(spec: Femnist, data_dir: Path) -> Dataset:
    """Images [n, 1, 28, 28] as LEAF has them: 0 is ink and 1 is paper."""
    return read_leaf("femnist", "FEMNIST (LEAF)", data_dir, _all if spec.classes == "all" else _a_to_j)


def _all(x: list[Any], y: list[Any]) -> tuple[NDArray[Any], Ids]:
    return np.asarray(x, np.float32).reshape(-1, 1, 28, 28), np.asarray(y).astype(np.int64)


def _a_to_j(x: list[Any], y: list[Any]) -> tuple[NDArray[Any], Ids]:
    images, labels = _all(x, y)
    kept = (labels >= LETTER_A) & (labels <= LETTER_J)
    return images[kept], labels[kept] - LETTER_A
