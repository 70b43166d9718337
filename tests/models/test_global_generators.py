"""The global random generators, which all threads of a process share."""

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcore.models.examination import scores_of
from fedcore.models.global_generators import restore_generators, seed_generators
from fedcore.random import generator

WAIT_S = 0.2
"""How long a thread is given to disturb another one."""


def drawn() -> list[float]:
    return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002


def drawn_under(seed: int, meanwhile: Callable[[], None] = lambda: None) -> list[float]:
    with seed_generators(generator(seed, "init")):
        first = drawn()
        meanwhile()
        return first + drawn()


def test_a_thread_draws_the_same_numbers_while_another_one_is_seeded() -> None:
    other = Thread(target=drawn_under, args=[1])

    def disturb() -> None:
        other.start()
        other.join(WAIT_S)

    alone = drawn_under(0)
    assert drawn_under(0, disturb) == alone
    other.join()


def test_a_module_is_not_charged_with_the_draws_of_another_thread() -> None:
    other = Thread(target=drawn_under, args=[1])

    class Slow(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            other.start()
            other.join(WAIT_S)
            return features

    assert torch.equal(scores_of(Slow(), torch.ones(2, 3)), torch.ones(2, 3))
    other.join()


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(())])
def test_global_draws_of_a_block_are_named_and_restored(draw: Callable[[], object]) -> None:
    def following() -> list[float]:
        with restore_generators():
            return drawn()

    before = following()
    with suppress(RuntimeError), restore_generators() as names:
        assert names() == []
        draw()
        assert len(names()) == 1
        raise RuntimeError
    assert following() == before


def test_a_process_that_is_forked_while_a_thread_is_seeded_can_draw() -> None:
    entered, leave = Event(), Event()

    def meanwhile() -> None:
        entered.set()
        leave.wait()

    other = Thread(target=drawn_under, args=[1, meanwhile])
    other.start()
    entered.wait()

    def release() -> None:
        time.sleep(WAIT_S)
        leave.set()

    releasing = Thread(target=release)
    releasing.start()
    child = os.fork()
    if child == 0:
        drawing = Thread(target=drawn_under, args=[2], daemon=True)
        drawing.start()
        drawing.join(30)
        os._exit(drawing.is_alive())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    releasing.join()
    other.join()
