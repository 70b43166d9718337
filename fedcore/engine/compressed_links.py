"""The links between clients and server: messages, compressed with error feedback, the exchange of
gradients before training, and the exact count of bytes in each direction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedcore.core import Algorithm, Cohort, Compressor, Vectors, at_place, sent_part
from fedcore.engine.assignment import Ids
from fedcore.engine.server import RESIDUAL, RunContext
from fedcore.messages import DENSE, RoundMessage, Way
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


NEVER = -1


class Traffic:
    """Counts the bytes of each round; remembers when each client last received the model.

    Changes in place.

    A client's first download is the dense model. Afterwards, under a compressed downlink, it needs
    the messages of every round since its last one, or the dense model if that is shorter.
    """

    def __init__(
        self, messages: Sequence[RoundMessage], algorithm: Algorithm, population: int, word: int
    ) -> None:
        """Count these `messages` of an algorithm, with numbers of `word` bytes, for a population."""
        self._messages, self._word = messages, word
        self._links = {"up": algorithm.uplink, "down": algorithm.downlink}
        self._up, self._extra = self._sum("up", "with"), self._sum("down", "with")
        self._settling = self._sum("down", "after")
        self._models = [
            (one.size(algorithm.downlink, word), one.size(DENSE, word)) for one in messages if one.catches_up
        ]
        self._last_heard = np.full(population, NEVER, np.int64)

    def _sum(self, way: Way, when: str, round: int = 1) -> int:
        """Bytes of a client's messages in a round, without those that catch up."""
        return sum(
            one.size(self._links[way], self._word)
            for one in self._messages
            if (one.way, one.when, one.catches_up) == (way, when, False) and one.sent_in(round)
        )

    def state(self) -> dict[str, Ids]:
        """Return which clients have received the model, and when last."""
        ids = np.flatnonzero(self._last_heard != NEVER)
        return {"ids": ids, "rounds": self._last_heard[ids]}

    def load(self, state: Mapping[str, Ids]) -> None:
        """Restore from `state`."""
        self._last_heard[:] = NEVER
        self._last_heard[state["ids"]] = state["rounds"]

    def up(self, clients: int) -> int:
        """Return the bytes that `clients` send with their changes."""
        return clients * self._up

    def down(self, clients: Ids, round: int) -> Ids:
        """Return the bytes [M] that reach each of `clients` at the start of `round`, and record
        that they have.
        """
        last, received = self._last_heard[clients], np.full(len(clients), self._extra, np.int64)
        for size, dense in self._models:
            missed = np.minimum((round - last) * size, dense)
            received += np.where(last == NEVER, dense, missed)
        self._last_heard[clients] = round
        return received

    def dense(self) -> int:
        """Return the bytes of a first download."""
        return self._extra + sum(dense for _, dense in self._models)

    def settle(self, clients: Ids, round: int) -> int:
        """Return the bytes that reach `clients` at the end of `round`, under a rule that sends them
        the next model then.
        """
        if self._settling:
            self._last_heard[clients] = round + 1
        return self.settling(len(clients))

    def settling(self, clients: int) -> int:
        """Bytes of the next model that `clients` receive at the end of a round, under such a rule."""
        return clients * self._settling

    def exchange(self, clients: int, round: int) -> tuple[int, int]:
        """Return the bytes up and down of the exchange with which `clients` begin `round`."""
        return clients * self._sum("up", "before", round), clients * self._sum("down", "before", round)
