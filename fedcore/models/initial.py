"""PyTorch's own initialisation, from one of our streams and without a trace in PyTorch's."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(draw: np.random.Generator) -> Iterator[None]:
    """Within the block PyTorch's CPU generator is seeded from `draw`; afterwards it is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(draw.integers(2**63)))
        yield
