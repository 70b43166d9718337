"""Messages: compressed as they are sent, with what error feedback keeps back for the next."""

from collections.abc import Iterable, Iterator
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import Compressor
from fedcore.data.random import generator
from fedcore.engine.assignment import Ids

DENSE = Compressor()
TOGETHER = 2**20
"""Numbers compressed at a time: more no longer fit into a processor's cache, and what is computed on the way takes memory."""


class Sent(NamedTuple):
    """What became of messages [..., D]."""

    received: Tensor
    """[..., D] as the receiver decodes them."""
    residual: Tensor | None
    """[..., D] what error feedback adds to the next ones; None without it."""


def lots(seed: int, purpose: str, round: int, clients: Ids) -> Iterator[Generator]:
    """The stream of each client's message, in the order of `clients`."""
    return (generator(seed, purpose, round, client) for client in clients.tolist())


def send(compressor: Compressor, message: Tensor, residual: Tensor | None, streams: Iterable[Generator]) -> Sent:
    """Send one message [D] or those of a cohort [M, D], `residual` added first under error feedback: h = C(rho + m), rho <- rho + m - h.

    `streams` has a generator for each message, in the order of the rows. They are drawn from only if the compressor leaves
    something to chance.
    """
    if compressor == DENSE:
        return Sent(message, None)
    if message.dim() == 1 or message.numel() <= TOGETHER:
        return _send_together(compressor, message, residual, streams)
    rows, streams = max(1, TOGETHER // message.shape[-1]), iter(streams)
    parts = [slice(first, first + rows) for first in range(0, len(message), rows)]
    kept = [None if residual is None else residual[part] for part in parts]
    sent = [_send_together(compressor, message[part], held, islice(streams, rows)) for part, held in zip(parts, kept, strict=True)]
    residuals = [part.residual for part in sent if part.residual is not None]
    return Sent(torch.cat([part.received for part in sent]), torch.cat(residuals) if residuals else None)


def _send_together(compressor: Compressor, message: Tensor, residual: Tensor | None, streams: Iterable[Generator]) -> Sent:
    if not compressor.error_feedback:
        return Sent(compressor.compress(message, _draws(compressor, message, streams)), None)
    assert residual is not None
    message = message + residual
    received = compressor.compress(message, _draws(compressor, message, streams))
    return Sent(received, message - received)


def _draws(compressor: Compressor, message: Tensor, streams: Iterable[Generator]) -> Tensor | None:
    """What each message is compressed with, [..., *]; None where nothing is left to chance."""
    *leading, dim = message.shape
    drawn: NDArray[Any] | None = None
    for index, stream in enumerate(streams):
        row = compressor.draw(stream, dim)
        if row is None:
            return None
        if drawn is None:
            drawn = np.empty((prod(leading), *row.shape), row.dtype)
        drawn[index] = row
    return None if drawn is None else torch.from_numpy(drawn).reshape(*leading, -1).to(message.device)
