"""The links between clients and server: messages, compressed with error feedback, and the exchange of
gradients before training.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import Cohort, Compressor, Vectors, at_place, sent_part
from fedcore.engine.assignment import Ids
from fedcore.engine.server import RESIDUAL, RunContext
from fedcore.messages import DENSE
from fedcore.random import generator

CHUNK_ELEMENTS = 2**20
"""Numbers compressed at a time: more no longer fit into a processor's cache, and what is computed
on the way takes memory.
"""


class Sent(NamedTuple):
    """Messages [..., D] after compression."""

    received: Tensor
    """[..., D] as the receiver decodes them."""
    residual: Tensor | None
    """[..., D] what error feedback adds to the next ones; None without it."""


def message_rngs(seed: int, purpose: str, round: int, clients: Ids) -> Iterator[Generator]:
    """Return the random stream of each client's message, in the order of `clients`."""
    return (generator(seed, purpose, round, client) for client in clients.tolist())


def send(
    compressor: Compressor,
    message: Tensor,
    residual: Tensor | None,
    streams: Iterable[Generator],
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Sent:
    """Send one message [D], or the messages [M, D] of a cohort; error feedback keeps a `residual`
    of each: h = C(rho + m), rho <- rho + m - h.

    `streams` has a generator for each message, in the order of the rows. They are drawn from only
    if the compressor is random.
    """
    if compressor == DENSE or not message.numel():
        return Sent(message, residual)
    if message.dim() == 1 or message.numel() <= chunk_elements:
        return _send_chunk(compressor, message, residual, streams)
    rows, streams = max(1, chunk_elements // message.shape[-1]), iter(streams)
    parts = [slice(first, first + rows) for first in range(0, len(message), rows)]
    kept = [None if residual is None else residual[part] for part in parts]
    sent = [
        _send_chunk(compressor, message[part], held, islice(streams, rows))
        for part, held in zip(parts, kept, strict=True)
    ]
    residuals = [part.residual for part in sent if part.residual is not None]
    return Sent(torch.cat([part.received for part in sent]), torch.cat(residuals) if residuals else None)


def _send_chunk(
    compressor: Compressor, message: Tensor, residual: Tensor | None, streams: Iterable[Generator]
) -> Sent:
    if not compressor.error_feedback:
        return Sent(compressor.compress(message, _draws(compressor, message, streams)), None)
    assert residual is not None
    return Sent(*compressor.feed_back(message, residual, _draws(compressor, message, streams)))


def _draws(compressor: Compressor, message: Tensor, streams: Iterable[Generator]) -> Tensor | None:
    """Random numbers of each message's compression, [..., *]; None for a deterministic compressor."""
    *leading, dim = message.shape
    drawn: NDArray[Any] | None = None
    for index, stream in enumerate(streams):
        row = compressor.sample(stream, dim)
        if row is None:
            return None
        if drawn is None:
            drawn = np.empty((prod(leading), *row.shape), row.dtype)
        drawn[index] = row
    return None if drawn is None else torch.from_numpy(drawn).reshape(*leading, -1).to(message.device)


UPLINK, DOWNLINK = "uplink compression", "downlink compression"
"""Purposes of randomness."""


@dataclass(frozen=True, slots=True)
class Links:
    """Both links in one round.

    A client or the server compresses at most one message per round on each.
    """

    setting: RunContext
    clients: Ids
    """[M]."""
    round: int

    def up(self, messages: Tensor, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return messages [M, D] as the server decodes them, and the residuals that error feedback
        keeps at the clients.
        """
        algorithm = self.setting.algorithm
        sent = send(
            algorithm.uplink,
            sent_part(algorithm.models, messages),
            memory.get(RESIDUAL),
            message_rngs(self.setting.seed, UPLINK, self.round, self.clients),
        )
        received = at_place(algorithm.models, sent.received)
        return received, {} if sent.residual is None else {RESIDUAL: sent.residual}

    def move(self, change: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the change of the server's models as the clients decode it, and the residual. Models are
        sent exactly where gradients are exchanged.
        """
        return self.down(change, residual) if self.setting.algorithm.exchange is None else (change, residual)

    def down(self, message: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return a message [D] as the clients decode it, and the residual that error feedback keeps
        at the server; of several models [k, D], each is a message of its own.

        Messages draw with the number of the model in place of the client's id.
        """
        algorithm = self.setting.algorithm
        models = algorithm.models
        sent = send(
            algorithm.downlink,
            sent_part(models, message),
            sent_part(models, residual),
            message_rngs(self.setting.seed, DOWNLINK, self.round, np.arange(models.kept)),
        )
        kept = residual if sent.residual is None else at_place(models, sent.residual)
        return at_place(models, sent.received), kept


def exchange_gradients(
    links: Links, anchors: Tensor, cohort: Cohort, memory: Vectors, residual: Tensor
) -> tuple[Tensor, Vectors, Tensor]:
    """The exchange before training: the gathered gradient [D], and what error feedback keeps at the
    clients and at the server.

    h_i = C_up(rho_i + anchor_i), g = C_down(e + sum_i w_i h_i / W), W = sum_i w_i: FedLin,
    Algorithm 1, lines 7 to 9, done at the start of the round instead of the end of the one before,
    so that a cohort trains with its own gradients.
    """
    exchange = links.setting.algorithm.exchange
    assert exchange is not None
    opening = exchange.first if links.round == 1 else "compressed"
    kept: Vectors = {RESIDUAL: memory[RESIDUAL]} if RESIDUAL in memory else {}
    if opening == "zero":
        return torch.zeros_like(residual), kept, residual
    if opening == "exact":
        return cohort.mean(anchors), kept, residual
    received, kept = links.up(anchors, memory)
    gathered, residual = links.down(cohort.mean(received), residual)
    return gathered, kept, residual
