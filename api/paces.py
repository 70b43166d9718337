"""How slow whoever sends a request, or reads the answer, may be: connections are for those who use them."""

from asyncio import BaseTransport, TimerHandle
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_S = 30.0
"""A request's first line and headers are whole so long after its connection was made, or after its first byte on one that is kept."""
BODY_S = 30.0
"""A body may take so long, and besides the time that its bytes would take at the slowest pace."""
ANSWER_S = 30.0
"""Of an answer that waits to be read, as much is read within this time as at the slowest pace."""
SLOWEST_PACE = 500.0
"""Bytes a second."""
REFUSAL = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Paced(HttpToolsProtocol):
    """Httptools, which alone would wait for ever: one who is too slow is hung up on. Time in which nothing is read here does not count."""

    _reading: TimerHandle | None = None
    _writing: TimerHandle | None = None
    _under_way = False
    """A request has begun, and is not whole."""
    _received = 0
    """Bytes of its body since it was looked at."""
    _held_up = False
    """It was not read when it was looked at."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Somebody is there, who may never say a word."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._expect(HEAD_S, self._look_at_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._cancel_reading()
        self._cancel_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What has come from the client; between requests, the beginning of one."""
        if self._reading is None:
            self._expect(HEAD_S, self._look_at_head)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._under_way, self._received = True, 0
        if self._reading is None:
            self._expect(HEAD_S, self._look_at_head)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._expect(BODY_S, self._look_at_body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body has come."""
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole; another may follow."""
        self._under_way = False
        self._cancel_reading()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """More of an answer waits to be read than is kept for a client."""
        self._cancel_writing()
        self._writing = self.loop.call_later(ANSWER_S, self._look_at_answer, self.transport.get_write_buffer_size())
        super().pause_writing()

    def resume_writing(self) -> None:
        """It was read."""
        self._cancel_writing()
        super().resume_writing()

    def _expect(self, within_s: float, otherwise: Callable[[], None]) -> None:
        self._cancel_reading()
        self._reading = self.loop.call_later(within_s, otherwise)

    def _look_at_head(self) -> None:
        """Its time is over."""
        if self.flow.read_paused:
            self._expect(HEAD_S, self._look_at_head)
        else:
            self._refuse()

    def _look_at_body(self) -> None:
        """The time that it had is over: what has come meanwhile has earned it more, or nothing has."""
        held_up, self._held_up = self._held_up, self.flow.read_paused
        earned_s, self._received = self._received / SLOWEST_PACE, 0
        if held_up or self._held_up:
            self._expect(BODY_S, self._look_at_body)
        elif earned_s:
            self._expect(earned_s, self._look_at_body)
        else:
            self._refuse()

    def _refuse(self) -> None:
        """Hang up; one who has begun a request and heard nothing yet is told why."""
        cycle: RequestResponseCycle | None = self.cycle
        if self._under_way and (cycle is None or cycle.response_complete or not cycle.response_started):
            self.transport.write(REFUSAL)
        self.transport.close()

    def _look_at_answer(self, waited: int) -> None:
        waits = self.transport.get_write_buffer_size()
        if waited - waits < ANSWER_S * SLOWEST_PACE:
            self.transport.abort()
        else:
            self._writing = self.loop.call_later(ANSWER_S, self._look_at_answer, waits)

    def _cancel_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _cancel_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
