"""Follows an experiment by its event stream, which is resumed after a broken connection, or by
polling where event streams are blocked.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from math import inf

from httpx_sse import ServerSentEvent, SSEError

from fedcore.platform.status import ENDED, Status
from fedq.client.errors import ServiceUnavailableError, ServiceUnreachableError, TooManyRequestsError
from fedq.client.transport import EXPERIMENTS, RUNS, Transport, drop_absent
from fedq.event_positions import Position
from fedq.schemas import (
    ArmArrival,
    DecisionEvent,
    Experiment,
    MetricsPage,
    Page,
    RoundEvent,
    Run,
    SearchPage,
    StatusEvent,
)

Event = RoundEvent | StatusEvent | DecisionEvent

NOW = "now"
"""Start with the current state: statuses, and the newest round of each run."""
HEARTBEAT_S = 5.0
SHORTEST_HEARTBEAT_S = 0.1
SILENCE_S = 15.0
"""Silence after which a stream is taken to be broken."""
STRIKES = 3
"""Consecutive streams without any event before the experiment is polled instead."""
FIRST_PAUSE_S = 0.1
POLL_S = 1.0


@dataclass
class Seen:
    """Events already returned for an experiment. Changes in place."""

    place: str | None = None
    """Id of the last event; before the first one, the requested start."""
    rounds: dict[str, int] = field(default_factory=dict)
    statuses: dict[str | None, Status] = field(default_factory=dict)
    decisions: set[tuple[int, int]] = field(default_factory=set)
    """Arms and rungs at which a decision is known."""

    @property
    def ended(self) -> bool:
        """True after the final status of the experiment."""
        return self.statuses.get(None) in ENDED

    def take(self, event: Event | None) -> bool:
        """Record `event`; return False if it is a repetition."""
        match event:
            case None:
                return True
            case RoundEvent(run_id=run_id, round=round):
                told = self.rounds.get(run_id, 0)
                self.rounds[run_id] = max(round, told)
                return round > told
            case StatusEvent(run_id=run_id, status=status):
                changed = status != self.statuses.get(run_id)
                self.statuses[run_id] = status
                return changed
            case DecisionEvent(arm=arm, rung=rung):
                told = len(self.decisions)
                self.decisions.add((arm, rung))
                return len(self.decisions) > told


async def follow(
    transport: Transport, experiment_id: str, *, since: str | None = None, quiet_s: float = HEARTBEAT_S
) -> AsyncGenerator[Event | None, None]:
    """Yield every round, decision and status change once until the experiment has ended; None after
    `quiet_s` without any.

    Starts with the first event, after the position `since`, or with the current state if `since` is
    NOW. Raises NotFoundError, also when the experiment is deleted, and ServiceUnreachableError or
    ServiceUnavailableError if the service stays away.
    """
    seen, strikes = Seen(since), 0
    once = transport.until(-inf)
    heartbeat_s = max(min(quiet_s, HEARTBEAT_S), SHORTEST_HEARTBEAT_S)
    while not seen.ended and strikes < STRIKES:
        try:
            async with aclosing(_stream(once, experiment_id, seen, heartbeat_s)) as events:
                async for event in events:
                    strikes = 0
                    if seen.take(event):
                        yield event
        except (ServiceUnreachableError, ServiceUnavailableError, TooManyRequestsError, SSEError):
            yield None
            # Waits for a service that is away: only one that is there can be said to block streams.
            await transport.read(Experiment, (EXPERIMENTS, experiment_id))
        strikes += 1
        if not seen.ended:
            await transport.wire.sleep(FIRST_PAUSE_S * 2**strikes)
    if since is not None and not seen.ended:
        # The place that the streams have reached: what is "now" has moved on since they began.
        await _begin(transport, experiment_id, seen, seen.place or since)
    async for event in _poll(transport, experiment_id, seen):
        yield event


async def _stream(
    transport: Transport, experiment_id: str, seen: Seen, heartbeat_s: float
) -> AsyncGenerator[Event | None, None]:
    """Yield the events of one connection."""
    resumed = seen.place not in (None, NOW)
    headers = drop_absent(Accept="text/event-stream", **{"Last-Event-ID": seen.place if resumed else None})
    params = drop_absent(heartbeat=heartbeat_s, since=None if resumed else seen.place)
    path = (EXPERIMENTS, experiment_id, "events")
    listening = transport.stream("GET", path, headers=headers, params=params, timeout=SILENCE_S)
    async with listening as response, aclosing(transport.wire.messages(response)) as messages:
        async for message in messages:
            seen.place = message.id or seen.place
            yield _event(message)


def _event(message: ServerSentEvent) -> Event | None:
    match message.event:
        case "round":
            return RoundEvent.model_validate_json(message.data)
        case "status":
            return StatusEvent.model_validate_json(message.data)
        case "decision":
            return DecisionEvent.model_validate_json(message.data)
        case _:
            return None


async def _begin(transport: Transport, experiment_id: str, seen: Seen, since: str) -> None:
    """Record the events before the position `since`, because polling reads everything."""
    runs = [run async for run in _runs(transport, experiment_id)]
    made = await _decisions(transport, await transport.read(Experiment, (EXPERIMENTS, experiment_id)))
    standing = [(run.status, run.rounds_done) for run in runs]
    place = Position.before(standing, len(made)) if since == NOW else Position.parse(since, len(runs))
    seen.decisions |= {(one.arm, one.rung) for one in made[: place.decisions]}
    for run, told, status in zip(runs, place.rounds, place.statuses, strict=True):
        seen.rounds.setdefault(run.id, told)
        if status is not None:
            seen.statuses.setdefault(run.id, status)


async def _poll(transport: Transport, experiment_id: str, seen: Seen) -> AsyncGenerator[Event | None, None]:
    while not seen.ended:
        async for event in _look(transport, experiment_id, seen):
            if seen.take(event):
                yield event
        yield None
        if not seen.ended:
            await transport.wire.sleep(POLL_S)


async def _look(transport: Transport, experiment_id: str, seen: Seen) -> AsyncGenerator[Event, None]:
    """Yield everything newer than `seen`. The experiment's own status is read first and sent last,
    so that no row can follow it.
    """
    experiment = await transport.read(Experiment, (EXPERIMENTS, experiment_id))
    async for run in _runs(transport, experiment_id):
        async for row in _rows(transport, run, seen.rounds.get(run.id, 0)):
            yield row
        yield StatusEvent(
            experiment_id=experiment_id, run_id=run.id, status=run.status, rounds_done=run.rounds_done
        )
    for one in await _decisions(transport, experiment):
        yield DecisionEvent(experiment_id=experiment_id, **one.model_dump())
    yield StatusEvent(experiment_id=experiment_id, run_id=None, status=experiment.status, rounds_done=None)


def _runs(transport: Transport, experiment_id: str) -> AsyncGenerator[Run, None]:
    """Iterate over the runs in order of their ids."""
    return transport.walk(Page[Run], (EXPERIMENTS, experiment_id, "runs"))


async def arrivals_of(transport: Transport, experiment_id: str) -> SearchPage:
    """Return all arrivals of an experiment's search on one page. Raises NotFoundError if it has no
    search.
    """
    path = (EXPERIMENTS, experiment_id, "search")
    page = await transport.read(SearchPage, path)
    items = list(page.items)
    while (more := await transport.read(SearchPage, path, cursor=page.next)).items:
        page = more
        items += more.items
    return page.model_copy(update={"items": items})


async def _decisions(transport: Transport, experiment: Experiment) -> list[ArmArrival]:
    """Return the decisions of the search in order; an empty list without a search."""
    if not experiment.specification.get("search"):
        return []
    return sorted(
        (one for one in (await arrivals_of(transport, experiment.id)).items if one.verdict), key=_order
    )


def _order(decision: ArmArrival) -> tuple[int, int, int]:
    """Sort key of decisions, in the order in which they were made."""
    return decision.decided_by or 0, decision.rung, decision.rank or 0


async def _rows(transport: Transport, run: Run, after: int) -> AsyncGenerator[RoundEvent, None]:
    while after < run.rounds_done:
        page = await transport.read(MetricsPage, (RUNS, run.id, "metrics"), cursor=after)
        for row in page.items:
            yield RoundEvent(run_id=run.id, **row.model_dump())
        if not page.items:
            return
        after = page.next
