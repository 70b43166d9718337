"""Messages between a worker and the computing process of a bundle: one request, one answer.

A message is a JSON object and bytes, with the lengths of both before them. The worker trusts no
answer: lengths are bounded, fields are checked (`workers/confined/answers.py`), and nothing is
unpickled.
"""

import io
import json
import socket
import struct
from typing import Any, NamedTuple

from fedcore.errors import UserCodeError
from fedcore.platform.logging import storable_text

MAX_JSON_BYTES = 16 << 20
MAX_VALUES = 1_000_000
"""Keys and values in the JSON of an answer: as objects, small ones take 70 bytes each."""
MAX_FIELDS = 10_000
"""Fields of one mapping in it."""
WITH_DATA = frozenset({"checkpoint", "model", "best_model"})
"""Requests whose answers have bytes beside their JSON."""
_HEADER = struct.Struct("!IQ")
_PIECE_BYTES = 1 << 20


class Message(NamedTuple):
    """One message."""

    fields: dict[str, Any]
    data: bytes = b""
    """A checkpoint or a model."""


class ProtocolError(UserCodeError):
    """A message that is not one, or says what cannot be."""

    def __init__(self, message: str) -> None:
        """Keep the first 2,000 characters of `message`, which may repeat what was received."""
        super().__init__(storable_text(message[:2_000]))


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, fields: dict[str, Any], data: bytes = b"") -> None:
        """Send a message; raises OSError where the other side is gone."""
        text = json.dumps(fields).encode()
        self._connection.sendall(_HEADER.pack(len(text), len(data)) + text)
        if data:
            self._connection.sendall(data)

    def receive(self, max_data: int | None) -> Message:
        """Wait for a message with at most `max_data` bytes beside its JSON; None: from a side that is
        trusted, of any length.

        Raises EOFError where the other side is gone, and ProtocolError for anything else than a
        message.
        """
        text_bytes, data_bytes = _HEADER.unpack(self._read(_HEADER.size))
        if max_data is not None and (text_bytes > MAX_JSON_BYTES or data_bytes > max_data):
            raise ProtocolError(
                f"a message of {text_bytes} and {data_bytes} bytes is too long; allowed are {MAX_JSON_BYTES}"
                f" and {max_data}"
            )
        text = self._read(text_bytes)
        fields = json.loads(text) if max_data is None else _parse(text)
        return Message(fields, self._read(data_bytes))

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def _read(self, count: int) -> bytes:
        # Grows with what arrives: a length alone takes no memory. `getvalue` returns its buffer, no copy.
        received = io.BytesIO()
        while (missing := count - received.tell()) > 0:
            piece = self._connection.recv(min(missing, _PIECE_BYTES))
            if not piece:
                raise EOFError("the other side is gone")
            received.write(piece)
        return received.getvalue()


def _parse(text: bytes) -> dict[str, Any]:
    # Each follows one of these characters; those in strings count too.
    if sum(map(text.count, (b",", b":", b"[", b"{"))) > MAX_VALUES:
        raise ProtocolError(f"a message has more than {MAX_VALUES} keys and values")
    try:
        fields = json.loads(text.decode(), object_hook=_few)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message cannot be read as JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError("a message is not a JSON object")
    return fields


def _few(mapping: dict[str, Any]) -> dict[str, Any]:
    if len(mapping) > MAX_FIELDS:
        raise ValueError(f"a mapping has {len(mapping)} fields; allowed are {MAX_FIELDS}")
    return mapping
