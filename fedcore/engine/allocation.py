"""What becomes of memory that a round gives back: it stays with the process, for the next round."""

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of options in malloc.h of the GNU C library."""
_KEPT, _ALONE = 2 << 30, 1 << 30
"""Bytes kept at most, and the size from which a block is mapped for itself all the same."""


@cache
def keep_freed() -> None:
    """Keep the process from giving blocks above 32 MB back to the system as soon as they are freed.

    The changes of a cohort's models are such a block, and so is every stacked step of theirs. Each time they are made anew the
    system clears their pages one by one, which takes three to nine times as long as the arithmetic. Whoever has set the C
    library's options by environment variables, or uses another library, is left alone.
    """
    if any(name in os.environ for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _ALONE)
        mallopt(_TRIM_THRESHOLD, _KEPT - 1)
