"""A connection of two workers that train shards of the same run, apart from all others, so that its loss
touches no other.

The two prove to each other that they know the secret of their membership, which the database told them.
Neither waits for the other without end. Each sends a sign of life several times per timeout, so that a
peer that is stopped, or whose machine is cut off, is noticed like one that is killed.

Nothing is encrypted: workers on several machines belong in a network of their own.
`torch.distributed` has no passwords: every process that reaches its store or the port of a process group
may take a place in it. `multiprocessing.connection` has, but waits for ever.
"""

import hmac
import json
import math
import secrets
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.engine.shard_messages import ShardMessage

PIECE_BYTES = 8 << 20
"""Tensors are sent in pieces of this size, each of which must leave in time."""
LARGE_BYTES = 16 << 20
"""Tensors from this size on are received into memory of their own, which is used again."""
SPARE = 8
"""Maximum number of pieces of such memory that wait to be used again: for the model, what the
algorithm shares, and sums.
"""
SIGNS_PER_TIMEOUT = 5
NONCE_BYTES = PROOF_BYTES = 32
FRAME = struct.Struct("<BQ")
"""Kind of what follows, and its size in bytes."""
SIGN, MESSAGE = 0, 1
_MEMBER, _LEADER = b"member", b"leader"
_LEAST_S = 1e-3
"""A time limit of 0 would mean something else to a socket."""


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

    def __init__(self, connection: socket.socket, silence_s: float) -> None:
        """Take over a connection on which both sides have proved what they know.

        It is lost if the other side is silent for `silence_s` seconds.
        """
        connection.settimeout(silence_s)
        self._connection, self._silence_s = connection, silence_s
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
        try:
            with self._sending:
                self._connection.sendall(FRAME.pack(MESSAGE, len(header)) + header)
                for value in resident.values():
                    data = _bytes(value)
                    for start in range(0, len(data), PIECE_BYTES):
                        self._connection.sendall(data[start : start + PIECE_BYTES])
        except OSError as error:
            self._end(error)
            raise PeerLostError(str(error)) from error
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
        """End the connection, and a wait for a message here; a second call does nothing."""
        self._end(PeerLostError("it was given up"))

    def _end(self, reason: Exception) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._arrived.put(PeerLostError(str(reason)))
            # Wakes the threads that wait for the other side.
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _show_life(self) -> None:
        while not self._closed.wait(self._silence_s / SIGNS_PER_TIMEOUT):
            try:
                with self._sending:
                    self._connection.sendall(FRAME.pack(SIGN, 0))
            except OSError as error:
                self._end(error)

    def _read(self) -> None:
        """Take what arrives, at all times: the other side waits for it to be taken."""
        kept: dict[str, Tensor] = {}
        try:
            while True:
                kind, size = FRAME.unpack(_received(self._connection, FRAME.size))
                if kind == MESSAGE:
                    message = self._message(size, kept)
                    kept = {name: value for name, value in message.tensors.items() if value.dim() == 1}
                    self._arrived.put(message)
        except Exception as error:
            self._end(error)
        finally:
            with self._sending:
                self._connection.close()

    def _message(self, size: int, kept: Mapping[str, Tensor]) -> ShardMessage:
        content = json.loads(_received(self._connection, size))
        tensors = {name: kept[name] for name in content["kept"]}
        for name, (dtype, *shape) in content["tensors"].items():
            tensors[name] = self._memory.empty(shape, getattr(torch, dtype))
            _fill(self._connection, _bytes(tensors[name]))
        return ShardMessage(content["header"], tensors)


def listen(host: str) -> socket.socket:
    """A socket that waits for members on this host, at a port that the system chooses. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address, family=family)


def connect(address: str, secret: str, connect_s: float) -> socket.socket:
    """Connect to the worker that holds a run, at host:port, as the member that was told this `secret`.

    Raises PeerLostError if it does not answer within `connect_s` seconds, or does not know the secret.
    """
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=connect_s)
    except OSError as error:
        raise PeerLostError(str(error)) from error
    with _introduction(connection):
        until = time.monotonic() + connect_s
        nonce = secrets.token_bytes(NONCE_BYTES)
        nonces = _received(connection, NONCE_BYTES, until) + nonce
        connection.sendall(nonce + _proof(secret, _MEMBER, nonces))
        proof = _received(connection, PROOF_BYTES, until)
        if not hmac.compare_digest(proof, _proof(secret, _LEADER, nonces)):
            raise PeerLostError("it does not know the secret of this membership")
    return connection


def admit(
    connection: socket.socket, secret_of: Callable[[Callable[[str], bool]], str], connect_s: float
) -> str:
    """Have the process that has connected prove that it knows the secret of a member; returns this secret.

    `secret_of` is given a function that is true of the right secret, and returns it or raises
    PeerLostError. Raises PeerLostError, and closes the connection, also if nothing comes within
    `connect_s` seconds.
    """
    with _introduction(connection):
        nonce = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(nonce)
        answer = _received(connection, NONCE_BYTES + PROOF_BYTES, time.monotonic() + connect_s)
        nonces, proof = nonce + answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        secret = secret_of(lambda known: hmac.compare_digest(proof, _proof(known, _MEMBER, nonces)))
        connection.sendall(_proof(secret, _LEADER, nonces))
    return secret


def _proof(secret: str, side: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + nonces, "sha256")


@contextmanager
def _introduction(connection: socket.socket) -> Iterator[None]:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield
    except (OSError, PeerLostError) as error:
        connection.close()
        raise PeerLostError(str(error)) from error


def _received(connection: socket.socket, size: int, until: float | None = None) -> bytes:
    data = bytearray(size)
    _fill(connection, memoryview(data), until)
    return bytes(data)


def _fill(connection: socket.socket, data: memoryview, until: float | None = None) -> None:
    """Receive into `data` until it is full: each piece within the time limit of the connection, or all
    before the monotonic time `until`.
    """
    while data:
        if until is not None:
            connection.settimeout(max(until - time.monotonic(), _LEAST_S))
        count = connection.recv_into(data)
        if not count:
            raise PeerLostError("it has left")
        data = data[count:]


def _bytes(value: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, to be read or written."""
    return value.view(-1).view(torch.uint8).numpy().data if value.numel() else memoryview(b"")
