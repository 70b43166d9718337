"""Layout of softmax regression on the chip of a GPU, and the test that it fits."""

from functools import lru_cache
from typing import NamedTuple

import torch

from fedcore.problems.dense import DenseNetwork

PARAMETER_BYTES = 64 << 10
"""Of padded parameters; they and as much for the velocity are then half of a multiprocessor's
registers.
"""
SAMPLES, TILES, WIDTH = 16, 16, 16
"""Most samples at a time, most warps of a client, and least columns of a warp."""
INNER = 8
"""The least that a product may sum over."""
REGISTERS, PER_THREAD, WARP = 1 << 16, 168, 32
"""Of 32 bits, on a multiprocessor and at most for a thread, so that small programs share a
multiprocessor; threads of a warp.
"""
RESERVED_BYTES = 2 << 10
"""Of shared memory, for what passes between warps."""


class Tiling(NamedTuple):
    """Powers of two: samples taken at a time, classes, and tiles by columns of a tile, a warp
    each.
    """

    samples: int
    classes: int
    tiles: int
    width: int

    def parameters(self) -> int:
        """Number of parameters, padding included."""
        return self.classes * self.tiles * self.width

    def shared_bytes(self, itemsize: int, stages: int) -> int:
        """Shared memory for numbers of `itemsize` bytes: the parameters, and the samples loaded in
        this many stages.
        """
        return (
            self.parameters() * itemsize
            + stages * self.samples * self.tiles * self.width * itemsize
            + RESERVED_BYTES
        )

    def options(self, itemsize: int, shared_bytes: int) -> dict[str, int | bool]:
        """Compiler options of the kernel on a GPU that grants a program this much shared memory:
        loads ahead of time, if they fit.
        """
        stages = 2 if self.shared_bytes(itemsize, 2) <= shared_bytes else 1
        # Left to itself, the assembler may settle on far fewer registers and spill most of the
        # parameters.
        registers = min(PER_THREAD, REGISTERS // (WARP * self.tiles))
        return {"num_warps": self.tiles, "num_stages": stages, "maxnreg": registers, "enable_fp_fusion": True}


def tiling(shape: tuple[int, int], batch: int) -> Tiling:
    """Return the tiling for a model of `shape` (C, d + 1) and batches of this size."""
    columns = max(INNER, power(shape[1]))
    tiles = min(TILES, max(1, columns // WIDTH))
    return Tiling(min(SAMPLES, max(INNER, power(batch))), power(shape[0]), tiles, columns // tiles)


def fits(data: DenseNetwork) -> bool:
    """Return True for softmax regression on a GPU where a client fits on the chip and Triton can
    launch kernels.
    """
    features = data.features
    if (
        features.device.type != "cuda"
        or len(data.widths) != 2
        or data.loss != "cross_entropy"
        or features.dtype not in {torch.float32, torch.float64}
    ):
        return False
    laid_out, itemsize = tiling(shape_of(data), SAMPLES), features.element_size()
    small = laid_out.parameters() * itemsize <= PARAMETER_BYTES
    return small and laid_out.shared_bytes(itemsize, 1) <= shared_memory(features.device) and has_triton()


def shape_of(data: DenseNetwork) -> tuple[int, int]:
    """Return (C, d + 1) of softmax regression: each row has the weights and the bias of a class."""
    inputs, outputs = data.widths
    return outputs, inputs + 1


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Return the shared memory in bytes available to a program."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


@lru_cache
def has_triton() -> bool:
    """Return True if kernels can be compiled and launched here: Triton comes with PyTorch's CUDA
    builds, multiplies float64 from 3.5 (PyTorch 2.9) on, and its launcher needs a C compiler.
    """
    try:
        import triton
        from triton.runtime import driver

        if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 5):
            return False

        driver.active.get_current_target()
    except Exception:
        return False
    return True


def power(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
