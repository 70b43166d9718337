"""Process-wide settings: glibc malloc keeps freed memory for the next round, and GPU libraries
compute the same bits every time in the requested precision.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from fedcore.lazy import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of options in malloc.h of the GNU C library."""
_KEPT, _ALONE = 2 << 30, 1 << 30
"""Bytes kept at most, and the size from which a block is mapped for itself all the same."""
_DONTNEED = 4
"""MADV_DONTNEED of Linux."""
_READ_ONLY = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[-x]p [0-9a-f]+ \S+ [1-9]\d* +/")
"""A private mapping of a file that cannot be written. Where an address was filled in before that,
`Anonymous` counts its page.
"""
_NO_COPIES = f"{'Anonymous:':15} {0:8} kB"


@cache
def retain_freed_memory() -> None:
    """Keep the process from returning blocks above 32 MB to the system as soon as they are freed.

    The changes of a cohort's models are such a block, and so is every stacked step. Each time one
    is allocated anew the system clears its pages one by one, which takes three to nine times as
    long as the arithmetic. Processes with the C library's options in environment variables, or with
    another library, are left alone.
    """
    if any(
        name in os.environ
        for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
    ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _ALONE)
        mallopt(_TRIM_THRESHOLD, _KEPT - 1)
        # Threads would have arenas of 64 MB, and larger blocks of theirs be mapped anew whatever is kept.
        mallopt(_ARENA_MAX, 1)


def release_freed_memory() -> None:
    """Return all freed memory to the system, once; does nothing without the GNU C library.

    For a process that has nothing to do for now, or has done what takes more than its rounds will.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def release_library_pages() -> None:
    """Unmap the pages of libraries that have been read and never written, on Linux; they are mapped
    again on first use.

    For a process that has loaded libraries and goes on to wait: the loader has read 300 MB of
    PyTorch's, mostly tables that it reads once. The system keeps them in its cache while it has
    room. No other thread may be loading a library.
    """
    try:
        maps = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return
    libc = ctypes.CDLL(None)
    start = length = 0
    for line in maps:
        if mapping := _READ_ONLY.match(line):
            start, end = (int(number, 16) for number in mapping.groups())
            length = end - start
        elif line.startswith("VmFlags:"):
            length = 0
        elif line == _NO_COPIES and length:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _DONTNEED)


def make_gpu_deterministic(device: torch.device) -> None:
    """Make PyTorch's GPU libraries deterministic and exact in this process, if `device` is a GPU.

    By default, convolutions and LSTMs in float32 are computed in TensorFloat-32, three digits
    instead of seven, and sums may be taken in the order in which threads arrive.
    """
    if device.type != "cuda":
        return
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    # In every version; since 2.9 PyTorch has the names below, and refuses to read the old ones if they
    # were never set.
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    if hasattr(matmul, "fp32_precision"):
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = matmul.fp32_precision = "ieee"
    cudnn.deterministic, cudnn.benchmark = True, False
    # cuBLAS reads it when it is first used; without it, products on several streams may differ, as
    # may cuDNN's LSTMs.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
