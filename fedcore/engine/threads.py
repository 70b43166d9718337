"""Threads that wait from round to round."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch


def at_once(work: Callable[[], None], most: int) -> None:
    """The same on as many threads as the tensor library has, and at most so many; this one takes part."""
    others = min(torch.get_num_threads(), most) - 1
    if others <= 0:
        work()
        return
    pending = [_threads(others, os.getpid()).submit(work) for _ in range(others)]
    work()
    for done in pending:
        done.result()


@lru_cache(maxsize=4)
def _threads(count: int, _process: int) -> ThreadPoolExecutor:
    """A process that is forked has none of its parent's."""
    return ThreadPoolExecutor(count, thread_name_prefix="kernels")
