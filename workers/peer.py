"""A connection of two workers that train shards of the same run: `torch.distributed` with the backend
gloo, in a process group of these two alone, so that the loss of one connection touches no other.

Neither side waits for the other without end. Each sends a sign of life several times per timeout, so
that a peer that is stopped, or whose machine is cut off, is noticed like one that is killed.

Nothing is encrypted, and every process that reaches the port may write to it: workers belong in a
network of their own, as `torch.distributed` says of itself.
"""

import json
import math
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from fedcore.engine.shard_messages import ShardMessage

PIECE_BYTES = 8 << 20
"""Tensors are sent in pieces of this size, each of which must arrive in time."""
LARGE_BYTES = 16 << 20
"""Tensors from this size on are received into memory of their own, which is used again."""
SPARE = 8
"""Pieces of such memory that wait to be used again: the model, what the algorithm shares, and sums."""
SIGNS_PER_TIMEOUT = 5
_SIGN, _MESSAGE, _END = 0, 1, 2


class PeerLostError(Exception):
    """The other side is dead, stopped or cut off."""


class _LargeMemory:
    """Memory for large tensors, used again once the tensors are gone: to clear fresh pages takes as long as
    to send what they hold, and the other side waits.
    """

    def __init__(self) -> None:
        self._spare: deque[NDArray[np.uint8]] = deque(maxlen=SPARE)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor to write to; one thread at a time asks for some."""
        size = math.prod(shape) * dtype.itemsize
        if size < LARGE_BYTES:
            return torch.empty(shape, dtype=dtype)
        for _ in range(len(self._spare)):
            memory = self._spare.popleft()
            if len(memory) == size:
                break
            self._spare.append(memory)
        else:
            memory = np.empty(size, np.uint8)
        # The tensor and its views keep this array, and it keeps the memory.
        lent = memory.view()
        weakref.finalize(lent, self._spare.append, memory).atexit = False
        return torch.from_numpy(lent).view(dtype).view(*shape)


class Peer:
    """One side of a connection. One thread at a time may send, and one receive."""

    def __init__(self, store: Store, rank: int, connect_s: float, silence_s: float) -> None:
        """Connect sides 0 and 1, which meet in `store`.

        Raises PeerLostError if the other side does not come within `connect_s` seconds; later, if it
        is silent for `silence_s` seconds.
        """
        self._other, self._timeout = 1 - rank, timedelta(seconds=silence_s)
        try:
            self._group: Any = ProcessGroupGloo(store, rank, 2, timedelta(seconds=connect_s))
        except RuntimeError as error:
            raise lost(error) from error
        self._sending, self._closed = threading.Lock(), threading.Event()
        self._sent: dict[str, Tensor] = {}
        self._memory = _LargeMemory()
        self._arrived: SimpleQueue[ShardMessage | PeerLostError] = SimpleQueue()
        for loop in (self._show_life, self._read):
            threading.Thread(target=loop, name="peer", daemon=True).start()

    def send(self, message: ShardMessage) -> None:
        """Send a message; vectors [D] that went with the last message, the same tensors, are not sent
        again.

        Raises PeerLostError.
        """
        resident = {
            name: value.detach().cpu().contiguous()
            for name, value in message.tensors.items()
            if self._sent.get(name) is not value
        }
        shapes = {
            name: [str(value.dtype).removeprefix("torch."), *value.shape] for name, value in resident.items()
        }
        kept = [name for name in message.tensors if name not in resident]
        header = json.dumps({"header": message.header, "tensors": shapes, "kept": kept}).encode()
        pieces = [piece for value in resident.values() for piece in _pieces(value)]
        try:
            with self._sending:
                self._put(
                    torch.tensor([_MESSAGE, len(header)]),
                    torch.frombuffer(bytearray(header), dtype=torch.uint8),
                    *pieces,
                )
        except RuntimeError as error:
            self._closed.set()
            raise lost(error) from error
        self._sent = {name: value for name, value in message.tensors.items() if value.dim() == 1}

    def receive(self, wait_s: float | None = None) -> ShardMessage | None:
        """Wait for the next message; None if there is none within `wait_s` seconds.

        Raises PeerLostError.
        """
        try:
            found = self._arrived.get(timeout=wait_s)
        except Empty:
            return None
        if isinstance(found, PeerLostError):
            self._arrived.put(found)
            raise found
        return found

    def close(self) -> None:
        """Tell the other side that nothing follows, and end a wait for a message here; a second call does
        nothing.
        """
        if not self._closed.is_set():
            self._closed.set()
            self._arrived.put(PeerLostError("it was given up"))
            with suppress(RuntimeError), self._sending:
                self._put(torch.tensor([_END, 0]))

    def _show_life(self) -> None:
        sign = torch.tensor([_SIGN, 0])
        while not self._closed.wait(self._timeout.total_seconds() / SIGNS_PER_TIMEOUT):
            try:
                with self._sending:
                    self._put(sign)
            except RuntimeError:
                return

    def _read(self) -> None:
        """Take what arrives, at all times: gloo ends a sending only when it is received."""
        kept: dict[str, Tensor] = {}
        try:
            while True:
                kind, size = self._received(2, torch.int64).tolist()
                if kind == _MESSAGE:
                    message = self._message(size, kept)
                    kept = {name: value for name, value in message.tensors.items() if value.dim() == 1}
                    self._arrived.put(message)
                elif kind == _END:
                    self._closed.set()
                    self._arrived.put(PeerLostError("it has left"))
                    return
        except RuntimeError as error:
            self._closed.set()
            self._arrived.put(lost(error))

    def _message(self, size: int, kept: Mapping[str, Tensor]) -> ShardMessage:
        content = json.loads(bytes(self._received(size, torch.uint8).numpy()))
        tensors = {name: kept[name] for name in content["kept"]}
        sent = {
            name: self._memory.empty(shape, getattr(torch, dtype))
            for name, (dtype, *shape) in content["tensors"].items()
        }
        self._get(*(piece for value in sent.values() for piece in _pieces(value)))
        return ShardMessage(content["header"], tensors | sent)

    def _put(self, *values: Tensor) -> None:
        # All at once: gloo sends what the other side waits for, and each wait is a round trip.
        for work in [self._group.send([value], self._other, 0) for value in values]:
            work.wait(self._timeout)

    def _received(self, size: int, dtype: torch.dtype) -> Tensor:
        value = torch.empty(size, dtype=dtype)
        self._get(value)
        return value

    def _get(self, *values: Tensor) -> None:
        for work in [self._group.recv([value], self._other, 0) for value in values]:
            work.wait(self._timeout)


def lost(error: Exception) -> PeerLostError:
    """The loss of a connection, as an error of `torch.distributed` tells it."""
    return PeerLostError(str(error).partition("\n")[0])


def _pieces(value: Tensor) -> Iterator[Tensor]:
    """The bytes of a contiguous tensor, piece by piece; none of an empty one."""
    data = value.view(-1).view(torch.uint8) if value.numel() else torch.empty(0, dtype=torch.uint8)
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
