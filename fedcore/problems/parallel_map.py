"""Spread clients over cores: a thread for each, in which the tensor library uses one thread."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

import torch

from fedcore.problems.base import Gradient

Result = TypeVar("Result")


def parallel_map(
    tasks: Iterable[Callable[[], Result]], device: torch.device, receive: Callable[[int, Result], None]
) -> None:
    """Run the tasks on the tensor library's threads; on a GPU, on one. `receive` is given the number
    and the result of each as soon as it is done, in this thread, and nothing else keeps the result.

    A task runs in one thread from start to end, so the number of threads changes no bit.
    """
    count = torch.get_num_threads()
    # It holds for the thread that calls it, and for those that are started later. This one, too: it
    # would take the cores from the others.
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(
            count if device.type == "cpu" else 1, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                # A list with a name would keep all results.
                for done in as_completed([pool.submit(_numbered, numbered) for numbered in enumerate(tasks)]):
                    receive(*done.result())
            except BaseException:
                # The caller need not wait for the work of other threads.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(count)


def _numbered(numbered: tuple[int, Callable[[], Result]]) -> tuple[int, Result]:
    number, task = numbered
    return number, task()


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
