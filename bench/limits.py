"""Measure the machine's limits: float32 matrix products and streaming memory traffic, all cores.

python -m bench limits
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

SIDE = 2_048
NUMBERS = 1 << 25
REPEATS = 9


class Limits(NamedTuple):
    """Measured rates."""

    gflops: float
    """Of a product of two 2048 x 2048 matrices, by the faster of the libraries that PyTorch calls."""
    gigabytes_s: float
    """Of c = a + b over arrays of 128 MiB, two read and one written."""

    def floor_s(self, operations: float, traffic: float) -> float:
        """Return the least time for these floating-point operations and bytes, perfectly
        overlapped.
        """
        return max(operations / self.gflops, traffic / self.gigabytes_s) / 1e9


def measure() -> Limits:
    """Measure both, the best of several."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        product_s = min(_best(_product()), _best(_convolution()))
        return Limits(2 * SIDE**3 / product_s / 1e9, 3 * 4 * NUMBERS / _best(_stream()) / 1e9)
    finally:
        torch.set_num_threads(before)


def _product() -> Callable[[], object]:
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    return lambda: torch.mm(left, right, out=out)


def _convolution() -> Callable[[], object]:
    """The same product by oneDNN, which on AMD processors takes half the time of MKL."""
    images = torch.randn(1, SIDE, 32, SIDE // 32).contiguous(memory_format=torch.channels_last)
    weights = torch.randn(SIDE, SIDE, 1, 1)
    return lambda: torch.conv2d(images, weights)


def _stream() -> Callable[[], object]:
    left, right, out = torch.ones(NUMBERS), torch.ones(NUMBERS), torch.empty(NUMBERS)
    return lambda: torch.add(left, right, out=out)


def _best(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def main(arguments: Sequence[str]) -> None:
    """Print both."""
    argparse.ArgumentParser(prog="python -m bench limits", description=__doc__).parse_args(arguments)
    limits = measure()
    print(f"{limits.gflops:.0f} GFLOP/s, {limits.gigabytes_s:.1f} GB/s")
