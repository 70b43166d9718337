"""One listener of an experiment: turns snapshots into server-sent events, without gaps or
repetition.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Send

from api.events.feed import SerializedRow, Snapshot
from fedcore.platform.status import ENDED, Status
from fedq.event_positions import Position
from fedq.schemas import StatusEvent


class Event(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str
    """JSON on one line."""
    id: str | None = None
    """Value of `Last-Event-ID` to resume after this event."""


class EventStream(StreamingResponse):
    """Response that sends events as they come and closes their source when the client disconnects.

    FastAPI's own leaves the source open and logs an error if an event was being sent
    (fastapi/fastapi, discussion 15725).
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Sequence[Event], None]) -> None:
        """Each item of `events` is sent in one piece."""
        self._events = events
        # Not to be kept, neither by caches nor, until it is complete, by nginx.
        super().__init__(_encoded(events), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        """Send the events until they end or the client disconnects."""
        async with aclosing(self._events):
            await super().stream_response(send)


async def _encoded(batches: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[bytes, None]:
    async for events in batches:
        yield b"".join(
            format_sse_event(event=event.kind, data_str=event.data, id=event.id) for event in events
        )
        # Let other tasks run, and detect disconnects, while there are events to send.
        await asyncio.sleep(0)


class Listener:
    """Position of one listener: what it was sent. Changes in place."""

    def __init__(self, experiment_id: str, run_ids: Sequence[str], told: Position) -> None:
        """`run_ids` in order, each with its place in `told`, which becomes the listener's own."""
        self._experiment_id = experiment_id
        self._index = {run_id: index for index, run_id in enumerate(run_ids)}
        self._position = told
        # Who resumes after an end may have missed a retry.
        self._up_to_date = False

    @property
    def finished(self) -> bool:
        """True once the final status of the experiment was sent."""
        return self._up_to_date and self._position.experiment in ENDED

    def missing(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Return the runs with rounds that were not sent, with the last round that was."""
        told = ((run_id, self._position.rounds[index]) for run_id, index in self._index.items())
        return {run_id: round for run_id, round in told if snapshot.runs[run_id][1] > round}

    def beginnings(self, snapshot: Snapshot) -> Iterator[Event]:
        """Yield changes to statuses that rounds may follow; sent before the rows."""
        self._admit(snapshot)
        return self._changes(snapshot, ended=False)

    def rounds(self, lines: Sequence[SerializedRow]) -> Iterator[Event]:
        """Yield the rows that come next: none that were sent before, and none after a gap."""
        for line in lines:
            index = self._index[line.run_id]
            if line.round == self._position.rounds[index] + 1:
                self._position.rounds[index] = line.round
                yield Event("round", line.row, str(self._position))

    def undecided(self, snapshot: Snapshot) -> int | None:
        """Return the number of decisions sent if there are more; otherwise None."""
        told = self._position.decisions
        return told if told < snapshot.decisions else None

    def decisions(self, made: Sequence[str]) -> Iterator[Event]:
        """Yield the decisions that follow those already sent."""
        for decision in made:
            self._position.decisions += 1
            yield Event("decision", decision, str(self._position))

    def endings(self, snapshot: Snapshot) -> Iterator[Event]:
        """Yield changes to final statuses, that of the experiment last; sent after the rows."""
        yield from self._changes(snapshot, ended=True)
        self._up_to_date = True

    def _admit(self, snapshot: Snapshot) -> None:
        """Add runs that were created since; their ids sort after all earlier ones."""
        for run_id in sorted(snapshot.runs.keys() - self._index.keys()):
            self._index[run_id] = len(self._index)
            self._position.statuses.append(None)
            self._position.rounds.append(0)

    def _changes(self, snapshot: Snapshot, *, ended: bool) -> Iterator[Event]:
        for run_id, index in self._index.items():
            status, done = snapshot.runs[run_id]
            if status != self._position.statuses[index] and (status in ENDED) == ended:
                self._position.statuses[index] = status
                yield self._status(run_id, status, done)
        if snapshot.status != self._position.experiment and (snapshot.status in ENDED) == ended:
            self._position.experiment = snapshot.status
            yield self._status(None, snapshot.status, None)

    def _status(self, run_id: str | None, status: Status, done: int | None) -> Event:
        data = StatusEvent(experiment_id=self._experiment_id, run_id=run_id, status=status, rounds_done=done)
        return Event("status", data.model_dump_json(), str(self._position))
