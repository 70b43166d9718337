"""Local training of dense networks in machine code, generated for this machine and network at first
use.
"""

from ctypes import CFUNCTYPE, c_int64
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from fedcore.engine.accelerated.cpu.layout import (
    TASK,
    Network,
    Numbers,
    Tasks,
    allocate_aligned,
    make_network,
    pad_parameters,
    size_buffers,
    unpad_parameters,
)
from fedcore.engine.accelerated.cpu.routine import Code, once, translate
from fedcore.engine.accelerated.cpu.simd import WORD, Emitter, Value
from fedcore.engine.accelerated.cpu.training import Trainer
from fedcore.problems.dense import LossName

__all__ = [
    "TASK",
    "Network",
    "Numbers",
    "Tasks",
    "allocate_aligned",
    "make_network",
    "pad_parameters",
    "train",
    "unpad_parameters",
]


def train(
    net: Network, loss: LossName, tasks: Tasks, starts: NDArray[np.int64], counter: NDArray[np.int64]
) -> None:
    """Train groups of `tasks` (type TASK), starting from the number in `counter` [1]; other threads
    may call it concurrently.

    `starts` [G + 1] holds the start of each group and the end of the last; the tasks of a group run
    one after another.
    """
    sums = int(tasks["summed"].max()) * net.starts[-1]
    room = allocate_aligned(sum(size_buffers(net).values()) + sums, np.dtype(f"f{net.size}"))
    _function(_code(net, loss).address)(
        counter.ctypes.data, tasks.ctypes.data, starts.ctypes.data, len(starts) - 1, room.ctypes.data
    )


_function: Any = CFUNCTYPE(None, c_int64, c_int64, c_int64, c_int64, c_int64)
"""It lets go of Python's lock while it runs."""


@once
def _code(net: Network, loss: LossName) -> Code:
    def body(emit: Emitter, counter: Value, tasks: Value, starts: Value, count: Value, room: Value) -> None:
        Trainer(emit, net, loss, room).work(counter, tasks, starts, count)

    return translate(body, ir.FunctionType(ir.VoidType(), [WORD] * 5), net.size)
