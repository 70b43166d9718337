"""Shortages of memory: how they show, on a CPU and on a GPU, and what is done about them."""

import gc
from pathlib import Path

from fedcore.lazy import torch

MEMORY_DIVISOR = 4
"""Factor by which stacks of clients shrink after each out-of-memory error."""
_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "alloc_failed",
    "bad_alloc",
    "cannot allocate memory",
)
"""Parts of the messages, in lower case, of libraries that have no error class of their own."""
_COUNTER = Path("/proc/vmstat")
"""Counts kills on the whole machine, also in containers; a container's own count ends with it."""


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out: Python's and NumPy's, or the tensor library's, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(sign in str(error).lower() for sign in _SIGNS)


def release_memory() -> None:
    """Free unreferenced memory, on a GPU too."""
    gc.collect()
    # Does nothing where no GPU has been touched.
    torch.cuda.empty_cache()


def user_message(error: BaseException) -> str:
    """Error message of a run that ran out of memory."""
    return f"memory ran out ({type(error).__name__}: {error}); {ADVICE}"


ADVICE = "use fewer clients per round, smaller batches or a smaller model, or a worker with more memory"


def oom_kill_count(counter: Path = _COUNTER) -> int:
    """The number of processes that the system has killed because memory ran out.

    0 where it does not say so.
    """
    try:
        words = counter.read_text().split()
    except OSError:
        return 0
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
