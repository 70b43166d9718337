"""`/v1/experiments/{id}/events`: changes as they happen.

A stream ends when its key no longer allows it, and a key may hold a limited number of streams
open in each process.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse

from api.events.feed import Feed, Snapshot
from api.events.listeners import Event, EventStream, Listener
from api.http.authentication import Reader
from api.http.dependencies import DatabaseDep, ExperimentId
from api.http.problems import describe_errors
from api.results.queries import position_of
from fedcore.errors import RateError, ResourceNotFoundError
from fedcore.platform.access import Principal
from fedcore.platform.store import UNAVAILABLE, Database, experiments, keys, progress, search
from fedq.event_positions import Position
from fedq.schemas import HeartbeatEvent

LOOK_S = 5.0
"""Maximum time that a stream continues after its key has become invalid."""


class KeyCheck:
    """Checks from time to time that the key of a stream is still valid, and its experiment visible.
    Changes in place.
    """

    def __init__(self, database: Database, principal: Principal, experiment_id: str, every_s: float) -> None:
        self._database, self._principal, self._every_s = database, principal, every_s
        self._experiment_id = experiment_id
        self._looked_at = monotonic()

    async def holds(self) -> bool:
        """Return whether the key still allows listening. Call this before sending."""
        if monotonic() - self._looked_at < self._every_s:
            return True
        self._looked_at = monotonic()
        return await asyncio.to_thread(self._look)

    def _look(self) -> bool:
        try:
            with self._database.reading() as session:
                experiments.find(session, self._experiment_id, self._principal.sees)
                return keys.still_allows(session, self._principal)
        except ResourceNotFoundError:
            return False
        except UNAVAILABLE:
            return True  # There is nothing to tell either.


WAIT_S = 5
MOST_STREAMS = 500
"""Maximum number of open event streams of a key in each process of the API."""


class StreamLimit:
    """Limits of open event streams: their number per key, and the time until a key is checked again.
    Belongs to one event loop.
    """

    def __init__(self, most: int = MOST_STREAMS, key_check_s: float = LOOK_S) -> None:
        """`most` is the number of streams per key."""
        self.key_check_s = key_check_s
        self._most = most
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one_of(self, key_id: str) -> Iterator[None]:
        """A seat of this key; raises RateError when it has no more."""
        if self._taken[key_id] >= self._most:
            allowed = f"{self._most} open event streams per key"
            raise RateError(f"limit exceeded: {allowed}; close one or try again in {WAIT_S} s", WAIT_S)
        self._taken[key_id] += 1
        try:
            yield
        finally:
            self._taken[key_id] -= 1
            self._taken += Counter()  # Without those who have none any more.


AT_ONCE = 100
"""Maximum number of events sent in one piece."""

router = APIRouter(prefix="/v1/experiments", tags=["experiments"])

LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="The `id:` of the last received event; the stream continues exactly after it.",
    ),
]
NOW = "now"
Since = Annotated[
    str | None,
    Query(
        description=(
            "Start of the stream, overridden by `Last-Event-ID` (default: the first round). `now`: the"
            " current status of the experiment and of each run with its newest round. The `position` of"
            " results, or the `id:` of an event: exactly after it."
        ),
        examples=[NOW],
    ),
]
Heartbeat = Annotated[
    float, Query(ge=0.1, le=300, description="Seconds without events after which a heartbeat is sent.")
]

KINDS = ("Round", "Status", "Decision", "Heartbeat")
EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": [kind.lower() for kind in KINDS]},
        "id": {
            "type": "string",
            "description": "Value of `Last-Event-ID` to resume after the event; heartbeats have none.",
        },
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": [{"$ref": f"#/components/schemas/{name}Event"} for name in KINDS]},
        },
    },
}
"""One event, for OpenAPI."""


def start(
    principal: Reader,
    experiment_id: ExperimentId,
    database: DatabaseDep,
    last_event_id: LastEventId = None,
    since: Since = None,
) -> Listener:
    """Return a listener at the requested position.

    A dependency, so that errors are answered before the stream starts.
    """
    with database.reading() as session:
        experiments.find(session, experiment_id, principal.sees)
        runs = progress.experiment_snapshots(session, [experiment_id])[experiment_id].runs
        decided = search.decided(session, [experiment_id]).get(experiment_id, 0)
    if last_event_id:
        told = position_of(last_event_id, len(runs), "Last-Event-ID")
    elif since == NOW:
        told = Position.before(runs.values(), decided)
    else:
        told = position_of(since, len(runs), "?since") if since else Position.start(len(runs))
    return Listener(experiment_id, list(runs), told)


async def _feed(request: Request) -> Feed:
    feed: Feed = request.app.state.feed
    return feed


async def _stream_limit(request: Request) -> StreamLimit:
    limit: StreamLimit = request.app.state.stream_limit
    return limit


StreamLimitDep = Annotated[StreamLimit, Depends(_stream_limit)]


async def seat(limit: StreamLimitDep, principal: Reader) -> AsyncGenerator[None, None]:
    """Count the stream against the limit of its key until it ends."""
    with limit.one_of(principal.key_id):
        yield


@router.get(
    "/{experiment_id}/events",
    dependencies=[Depends(seat)],
    response_class=StreamingResponse,
    responses={
        200: {"description": "The events.", "content": {EventStream.media_type: {"itemSchema": EVENT}}},
        **describe_errors(404, 422),
    },
    summary="Stream events of an experiment",
)
async def stream_events(
    principal: Reader,
    experiment_id: ExperimentId,
    database: DatabaseDep,
    feed: Annotated[Feed, Depends(_feed)],
    limit: StreamLimitDep,
    listener: Annotated[Listener, Depends(start)],
    heartbeat: Heartbeat = 15,
) -> EventStream:
    """Stream server-sent events: `round` (a round of a run), `status` (of a run or the experiment),
    `decision` (of a search), `heartbeat`.

    Their data are RoundEvent, StatusEvent, DecisionEvent and HeartbeatEvent. The stream starts with
    the first round, or at `since`; `Last-Event-ID` resumes it without loss or repetition. Rounds of
    a run are in order. The stream ends after the final status of the experiment, or when the key is
    revoked, expires or changes its scope.
    """
    leave = KeyCheck(database, principal, experiment_id, limit.key_check_s)
    return EventStream(_listen(experiment_id, feed, listener, heartbeat, leave))


async def _listen(
    experiment_id: str, feed: Feed, listener: Listener, heartbeat_s: float, leave: KeyCheck
) -> AsyncGenerator[Sequence[Event], None]:
    with feed.listen(experiment_id) as mailbox:
        while not listener.finished:
            try:
                news = await asyncio.wait_for(mailbox.get(), heartbeat_s)
            except TimeoutError:
                if not await leave.holds():
                    return
                yield [Event("heartbeat", HeartbeatEvent(time=datetime.now(UTC)).model_dump_json())]
                continue
            if news is None or not await leave.holds():
                return
            async for events in _tell(experiment_id, listener, news, feed):
                yield events


async def _tell(
    experiment_id: str, listener: Listener, snapshot: Snapshot, feed: Feed
) -> AsyncGenerator[Sequence[Event], None]:
    """Yield the events in a snapshot, in batches; rows that it lacks are read from the database."""
    yield list(listener.beginnings(snapshot))
    lines = snapshot.lines or await feed.lines(listener.missing(snapshot))
    while lines:
        told = listener.rounds(lines)
        while events := list(islice(told, AT_ONCE)):
            yield events
        lines = await feed.lines(listener.missing(snapshot))
    while (known := listener.undecided(snapshot)) is not None and (
        made := await feed.decisions(experiment_id, known)
    ):
        yield list(listener.decisions(made))
    yield list(listener.endings(snapshot))
