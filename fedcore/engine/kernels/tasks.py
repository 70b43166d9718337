"""What a client is to do, as the code finds it in memory."""

import numpy as np
from numpy.typing import NDArray

from fedcore.engine.kernels.simd import Emitter
from fedcore.engine.kernels.values import DOUBLE, WORD, Value

Tasks = NDArray[np.void]
TASK = np.dtype(
    [
        ("features", np.int64),  # [n, d]
        ("labels", np.int64),  # [n] whole, or real numbers where the loss is so
        ("rows", np.int64),  # [n_i] which samples the client holds
        ("held", np.int64),  # n_i
        ("batches", np.int64),  # [kinds, width] indices into rows; -1 is padding, at the end
        ("kinds", np.int64),  # as many as steps; or one, seen in all of them
        ("width", np.int64),
        ("steps", np.int64),
        ("sizes", np.int64),  # [steps] step sizes, in double precision
        ("x", np.int64),  # the broadcast model, padded
        ("offset", np.int64),  # [D]; 0 where there is none
        ("out", np.int64),  # [D] where the result goes; 0 where nobody wants it
        ("delta", np.int64),  # whether that is y - x, or else y
        ("summed", np.int64),  # K weighted sums that y - x is added to
        ("counts", np.int64),  # [K] what multiplies y - x in each
        ("fresh", np.int64),  # whether the sums begin with this client
        ("sums", np.int64),  # [K, D] in padded rows, where they go after this client; 0 where they go on
        ("compares", np.int64),  # whether g is less the gradient at x over the same batch
        ("pace", np.float64),  # what multiplies the step sizes
        ("scale", np.float64),  # what multiplies the loss
        ("pull", np.float64),
        ("shrink", np.float64),
        ("momentum", np.float64),
    ]
)
"""A client's training: v <- momentum v + g + shrink y + pull (y - x) + offset; y <- y - size v, from y = x on. Whole numbers that
are no counts are addresses."""


class Task:
    """The fields of a task at some address."""

    def __init__(self, emit: Emitter, address: Value) -> None:
        """Of type TASK."""
        self._emit, self._address = emit, address

    def __getattr__(self, field: str) -> Value:
        assert TASK.fields is not None
        kind, offset = TASK.fields[field][:2]
        return self._emit.read(self._address + offset, DOUBLE if kind == np.float64 else WORD)
