"""Clients spread over cores: a thread on each, in which the tensor library has one."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from fedcore.problems.base import Gradient

Result = TypeVar("Result")


def parallel_map(tasks: Iterable[Callable[[], Result]], device: torch.device) -> list[Result]:
    """What each of the tasks returns, on as many threads as the tensor library has.

    On a GPU, on one.

    A task runs in one thread from start to end, so that their number changes no bit.
    """
    count = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(
            count if device.type == "cpu" else 1, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                return [done.result() for done in [pool.submit(task) for task in tasks]]
            except BaseException:
                # Whoever waits for the answer need not wait for the others' work.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        # It holds for the thread that calls it, and for those that are started later.
        torch.set_num_threads(count)


class WorkerCopies:
    """A problem's gradients, one for each thread that takes them at the same time."""

    def __init__(self, replica: Callable[[], Gradient]) -> None:
        """`replica` makes another."""
        self._replica, self._spare = replica, list[Gradient]()

    @contextmanager
    def one(self) -> Iterator[Gradient]:
        """One that nobody else uses.

        Whatever it keeps between steps, it keeps for whoever takes it next.
        """
        gradient = self._spare.pop() if self._spare else self._replica()
        try:
            yield gradient
        finally:
            self._spare.append(gradient)
