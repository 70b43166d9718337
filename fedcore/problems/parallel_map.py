"""Spread clients over cores: a thread for each, in which the tensor library uses one thread."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from fedcore.problems.base import Gradient

Result = TypeVar("Result")


def parallel_map(tasks: Iterable[Callable[[], Result]], device: torch.device) -> list[Result]:
    """Return the results of the tasks, run on the tensor library's threads; on a GPU, on one.

    A task runs in one thread from start to end, so the number of threads changes no bit.
    """
    count = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(
            count if device.type == "cpu" else 1, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                return [done.result() for done in [pool.submit(task) for task in tasks]]
            except BaseException:
                # The caller need not wait for the work of other threads.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        # It holds for the thread that calls it, and for those that are started later.
        torch.set_num_threads(count)


class WorkerCopies:
    """A problem's gradient functions, one for each thread that computes gradients at the same time."""

    def __init__(self, replica: Callable[[], Gradient]) -> None:
        """Make copies with `replica` as they are needed."""
        self._replica, self._spare = replica, list[Gradient]()

    @contextmanager
    def one(self) -> Iterator[Gradient]:
        """Lend a copy that no other thread uses.

        State that it keeps between steps goes on to its next user.
        """
        gradient = self._spare.pop() if self._spare else self._replica()
        try:
            yield gradient
        finally:
            self._spare.append(gradient)
