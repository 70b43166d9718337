"""Server-sent events on the wire."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Send


class Event(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str
    """JSON on one line."""
    id: str | None = None
    """What to resume after it with."""


class EventStream(StreamingResponse):
    """A response that sends events as they come, and closes their source as soon as nobody listens any more.

    FastAPI's own leaves its source open then, and logs an error when an event was on its way (fastapi/fastapi, discussion 15725).
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Sequence[Event], None]) -> None:
        """Events that come together are sent together."""
        self._events = events
        # Not to be kept, neither by caches nor, until it is complete, by nginx.
        super().__init__(_encoded(events), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        """Send the events until they end or the listener is gone."""
        async with aclosing(self._events):
            await super().stream_response(send)


async def _encoded(batches: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[bytes, None]:
    async for events in batches:
        yield b"".join(format_sse_event(event=event.kind, data_str=event.data, id=event.id) for event in events)
        # Else nobody has a turn, and nobody notices a hang-up, while there are events to send.
        await asyncio.sleep(0)
