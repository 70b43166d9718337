from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.engine.accelerated.gpu.launch import ALIGNMENT, sent


def test_arrays_of_any_type_arrive_as_they_were() -> None:
    arrays: list[NDArray[Any]] = [
        np.arange(7, dtype=np.int32).reshape(7, 1),
        np.zeros((0, 2)),
        np.eye(3)[:, ::2],
        np.array([1.5], np.float32),
    ]
    arrived = sent(arrays, torch.device("cpu"))
    for array, tensor in zip(arrays, arrived, strict=True):
        assert tensor.dtype == torch.from_numpy(array.copy()).dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert not len(array) or tensor.storage_offset() * tensor.element_size() % ALIGNMENT == 0
