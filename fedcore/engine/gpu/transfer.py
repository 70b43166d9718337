"""From the host to a device."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 16
"""Bytes; as wide as a GPU's loads."""


def sent(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays on `device`, in one transfer that the host does not wait for."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    bounds = list(accumulate((-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays), initial=0))
    # From pinned memory, which PyTorch keeps until the transfer is over, the host goes on at once.
    packed = torch.empty(bounds[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for array, start in zip(arrays, bounds, strict=False):
        packed.numpy()[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    moved = packed.to(device, non_blocking=True)
    return [
        moved[start : start + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for array, (start, _) in zip(arrays, pairwise(bounds), strict=True)
    ]
