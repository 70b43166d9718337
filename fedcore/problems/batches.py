"""Mini-batches of several clients over consecutive steps, as rows of what all clients hold."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.plan import PADDING


class Located(NamedTuple):
    """Which samples the clients see in each step, [S, m, B]; S is 1 where every step sees the same."""

    rows: Tensor
    """Counted over all clients' samples; for padding, any."""
    weights: Tensor
    """1 over the number of samples in the client's batch; 0 for padding."""


def locate(batches: Tensor, starts: Tensor, dtype: torch.dtype) -> Located:
    """Find the samples of `batches` [m, S, B], each client's own indices, for clients whose samples begin at `starts` [m]."""
    repeated = batches.stride(1) == 0
    local = (batches[:, :1] if repeated else batches).to(starts.device).transpose(0, 1)
    real = local != PADDING
    return Located(local.clamp(min=0) + starts[:, None], real.to(dtype) / real.sum(-1, keepdim=True))


def without_views(batches: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What `batches` [m, S, B] say of clients of `sizes` [m] whose samples are seen in several ways: which samples, in which views."""
    counts = sizes.to(batches.device)[:, None, None]
    return torch.where(batches == PADDING, PADDING, batches % counts), batches.clamp(min=0) // counts


def rows_of(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows start, start + 1, ... of clients of `sizes` [m] whose samples begin at `starts` [m], one after another."""
    ends = np.cumsum(sizes)
    rows: NDArray[np.int64] = np.arange(ends[-1]) + np.repeat(starts - (ends - sizes), sizes)
    return rows
