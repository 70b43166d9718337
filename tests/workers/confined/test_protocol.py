"""Messages of the confined side: bounded, read as they are, and held in memory once."""

import json
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedcore.platform.logging import storable_text
from tests.support.scripted_bundles import ScriptedSandbox, closing_session, frame
from workers.confined.protocol import (
    MAX_FIELDS,
    MAX_JSON_BYTES,
    MAX_VALUES,
    WITH_DATA,
    Channel,
    ProtocolError,
)

LENGTH = 64 << 20


@contextmanager
def sent(*pieces: bytes) -> Iterator[Channel]:
    """One end of a connection, at whose other end a thread sends these pieces and is gone."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for piece in pieces:
                theirs.sendall(piece)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    with ours:
        yield Channel(ours)
    thread.join()


def test_a_message_takes_its_length_once() -> None:
    piece = bytes(1 << 20)
    with sent(struct.pack("!IQ", 2, LENGTH) + b"{}", *([piece] * (LENGTH >> 20))) as channel:
        tracemalloc.start()
        try:
            message = channel.receive(LENGTH)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(message.data) == LENGTH
    assert peak < 1.25 * LENGTH


def test_a_length_alone_takes_no_memory() -> None:
    with sent(struct.pack("!IQ", 2, LENGTH) + b"{}" + bytes(1000)) as channel:
        tracemalloc.start()
        try:
            with pytest.raises(EOFError):
                channel.receive(LENGTH)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < LENGTH / 16


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"1",
            b'"x"',
            b"nul",
            b"\xff\xfe{}",
            b"[" * 100_000,
            b'{"a": ' + b"9" * 5_000 + b"}",
        ),
        json.dumps({"a": 1}).encode("utf-16"),
        json.dumps({"a": 1}).encode("utf-32-le"),
        b'{"a": [' + b"0," * MAX_VALUES + b"0]}",
        b'{"a": [' + b"[]," * MAX_VALUES + b"0]}",
        json.dumps({"a": [dict.fromkeys(map(str, range(MAX_FIELDS + 1)))]}).encode(),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_text_without_a_json_object_of_few_values_is_no_message(text: bytes) -> None:
    with sent(frame(text)) as channel, pytest.raises(ProtocolError):
        channel.receive(0)


def test_a_message_may_have_the_numbers_of_many_clients() -> None:
    fields = {"extra": {"loss": [0.123456789] * 400_000}}
    with sent(frame(fields)) as channel:
        assert channel.receive(0).fields == fields


def test_a_side_that_is_trusted_may_send_messages_of_any_length() -> None:
    fields = {"document": [0] * (MAX_VALUES + 1)}
    with sent(frame(fields, b"x" * 100)) as channel:
        assert channel.receive(None) == (fields, b"x" * 100)


def test_a_text_beyond_the_limit_is_refused_unread() -> None:
    with (
        sent(struct.pack("!IQ", MAX_JSON_BYTES + 1, 0)) as channel,
        pytest.raises(ProtocolError, match="too long"),
    ):
        channel.receive(0)


@pytest.mark.parametrize("asked", ["start", "restore", "advance", "call", *sorted(WITH_DATA)])
def test_data_come_with_the_answers_that_need_them_alone(asked: str) -> None:
    with closing_session(ScriptedSandbox(lambda _: frame({}, b"data"), memory_bytes=8)) as session:
        if asked in WITH_DATA:
            assert session.request({"do": asked}, 10.0).data == b"data"
        else:
            with pytest.raises(ProtocolError, match="4 bytes is too long; allowed are 16777216 and 0"):
                session.request({"do": asked}, 10.0)


@pytest.mark.parametrize("asked", sorted(WITH_DATA))
def test_data_are_half_of_the_memory_of_a_bundle_at_most(asked: str) -> None:
    with (
        closing_session(ScriptedSandbox(lambda _: frame({}, b"data!"), memory_bytes=8)) as session,
        pytest.raises(ProtocolError, match="5 bytes is too long; allowed are 16777216 and 4"),
    ):
        session.request({"do": asked}, 10.0)


def test_the_message_of_an_error_is_short_and_can_be_stored() -> None:
    text = str(ProtocolError("\ud800\x00" + "x" * 10_000))
    assert len(text) == 2_000
    assert text == storable_text(text)
