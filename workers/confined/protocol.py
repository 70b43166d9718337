"""Messages between a worker and the computing process of a bundle: one request, one answer.

A message is a JSON object and bytes, with the lengths of both before them. The worker trusts no
answer: lengths are bounded, fields are checked (`workers/confined/answers.py`), and nothing is
unpickled.
"""

import json
import socket
import struct
from typing import Any, NamedTuple

from fedcore.errors import UserCodeError

VERSION = 1
MAX_JSON_BYTES = 16 << 20
_HEADER = struct.Struct("!IQ")
_PIECE_BYTES = 1 << 20


class Message(NamedTuple):
    """One message."""

    fields: dict[str, Any]
    data: bytes = b""
    """A checkpoint or a model."""


class ProtocolError(UserCodeError):
    """A message that is not one."""


class Channel:
    """One end of a connection; messages have at most `max_data` bytes beside their JSON."""

    def __init__(self, connection: socket.socket, max_data: int) -> None:
        self._connection, self._max_data = connection, max_data

    def send(self, fields: dict[str, Any], data: bytes = b"") -> None:
        """Send a message; raises OSError where the other side is gone."""
        text = json.dumps(fields).encode()
        self._connection.sendall(_HEADER.pack(len(text), len(data)) + text)
        if data:
            self._connection.sendall(data)

    def receive(self) -> Message:
        """Wait for a message.

        Raises EOFError where the other side is gone, and ProtocolError for anything else than a
        message.
        """
        text_bytes, data_bytes = _HEADER.unpack(self._read(_HEADER.size))
        if text_bytes > MAX_JSON_BYTES or data_bytes > self._max_data:
            raise ProtocolError(
                f"a message of {text_bytes} and {data_bytes} bytes is too long; allowed are {MAX_JSON_BYTES}"
                f" and {self._max_data}"
            )
        text, data = self._read(text_bytes), self._read(data_bytes)
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a message is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ProtocolError("a message is not a JSON object")
        return Message(fields, bytes(data))

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def _read(self, count: int) -> bytearray:
        # Grows with what arrives: a length alone takes no memory.
        received = bytearray()
        while len(received) < count:
            piece = self._connection.recv(min(count - len(received), _PIECE_BYTES))
            if not piece:
                raise EOFError("the other side is gone")
            received += piece
        return received
