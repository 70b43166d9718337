"""The arrays of an upload: as a file declares them, checked before they are read, and as they were
read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.data.user_datasets import NAMELESS, Clients, Origin
from fedcore.errors import UploadError
from fedcore.platform.uploads.limits import UploadLimits

FEATURES, LABEL, CLIENT, TEST = "features", "label", "client", "test"
NAMES = (FEATURES, LABEL, CLIENT, TEST)
MAX_DIMENSIONS = 8
"""Maximum number of dimensions of one sample."""


_NUMBERS = "fiub"
_WHAT_IS_RIGHT = {
    FEATURES: (_NUMBERS, "numbers (float32, float64, integers or booleans)"),
    LABEL: (_NUMBERS, "integers 0..C-1 for classification or floats for regression"),
    CLIENT: ("iuU", "integers or text (np.asarray(ids, dtype=str))"),
    TEST: ("b", "booleans: true for the samples to test with"),
}


class ArrayHeader(NamedTuple):
    """An array that has not been read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes it takes in memory."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of a file, not yet validated."""

    features: NDArray[Any]
    """[n, ...]."""
    label: NDArray[Any]
    """[n]."""
    clients: Clients | None
    test: NDArray[np.bool_] | None
    """[n]."""
    origin: Origin = NAMELESS


def check_declared(declared: Mapping[str, ArrayHeader], limits: UploadLimits) -> None:
    """Refuse names, shapes, types and sizes that no upload may have; raises UploadError."""
    for name in (FEATURES, LABEL):
        if name not in declared:
            raise UploadError(
                name, f"missing; {FEATURES} and {LABEL} are required, {CLIENT} and {TEST} are optional"
            )
    for name, array in declared.items():
        _check_type(name, array.dtype)
    _check_shapes(declared, limits)
    size = sum(array.size for array in declared.values())
    if size > limits.bytes:
        raise UploadError("", f"the arrays have {size} bytes; the limit is {limits.bytes}")


def _check_type(name: str, dtype: np.dtype[Any]) -> None:
    kinds, right = _WHAT_IS_RIGHT[name]
    if dtype.kind not in kinds or (dtype.itemsize > 8 and dtype.kind != "U"):
        given = "Python objects" if dtype.hasobject else str(dtype)
        raise UploadError(name, f"contains {given}; it must contain {right}")


def _check_shapes(declared: Mapping[str, ArrayHeader], limits: UploadLimits) -> None:
    shape = declared[FEATURES].shape
    if not 2 <= len(shape) <= MAX_DIMENSIONS + 1:
        raise UploadError(
            FEATURES,
            f"has shape {list(shape)}; it must be [samples, ...], with 1 to {MAX_DIMENSIONS} dimensions for"
            " one sample",
        )
    samples, numbers = shape[0], prod(shape[1:])
    if not 1 <= samples <= limits.samples:
        raise UploadError(FEATURES, f"has {samples} samples; it must have 1 to {limits.samples}")
    if not 1 <= numbers <= limits.features:
        raise UploadError(
            FEATURES,
            f"has {numbers} numbers per sample, shape {list(shape[1:])}; it must have 1 to {limits.features}",
        )
    for name in NAMES[1:]:
        if name in declared and declared[name].shape != (samples,):
            raise UploadError(
                name,
                f"has shape {list(declared[name].shape)}; it must be [{samples}], one entry per sample of"
                f" {FEATURES}",
            )
