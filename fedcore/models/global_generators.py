"""The global generators of PyTorch (on the CPU), NumPy and `random`, from which networks draw their
initial parameters, and users' modules whatever they like.

They belong to the process, not to a thread. So one thread at a time may be in
`restore_generators` or `seed_generators`: two that build networks would otherwise draw from each
other's streams.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

_lock = RLock()
# A process that is forked while another thread holds the lock could never take it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextmanager
def restore_generators() -> Iterator[Callable[[], list[str]]]:
    """Restore the global generators after the block; until then other threads wait.

    The block is given a function that names those from which it has drawn so far.
    """
    with _lock:
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
        torch_state = torch.get_rng_state()

        def drawn() -> list[str]:
            pairs = zip(numpy_state, np.random.get_state(), strict=True)  # noqa: NPY002
            used = {
                "numpy.random": not all(np.array_equal(before, now) for before, now in pairs),
                "random": random.getstate() != python_state,
                "torch": not torch.equal(torch.get_rng_state(), torch_state),
            }
            return [name for name, drew in used.items() if drew]

        try:
            yield drawn
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
            torch.set_rng_state(torch_state)


@contextmanager
def seed_generators(draw: np.random.Generator) -> Iterator[None]:
    """Seed the global generators from `draw` within the block, and restore them afterwards."""
    seed = int(draw.integers(2**63))
    with restore_generators():
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield
