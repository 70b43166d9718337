"""Changes of experiments with listeners: one poller per process reads the database and notifies all
listeners.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from api.search.service import arrival_answers
from fedcore.platform.store import Database, Status, curves, progress, search
from fedq.schemas import DecisionEvent, RoundEvent

FASTEST_S = 0.1
SLOWEST_S = 1.0
SLOWING = 1.5
BACKLOG = 16
"""Snapshots that a listener may be behind before it reads the rest from the database."""
ROWS = 5_000
"""Maximum number of rows per query."""

log = structlog.stdlib.get_logger("fedq.api")


class SerializedRow(NamedTuple):
    """Row of a round as JSON."""

    run_id: str
    round: int
    row: str
    """The row as JSON."""


class Snapshot(NamedTuple):
    """An experiment at one moment."""

    status: Status
    runs: Mapping[str, tuple[Status, int]]
    """Each run's status and rounds done, in order of run ids."""
    lines: Sequence[SerializedRow] = ()
    """Rows since the previous snapshot."""
    decisions: int = 0
    """Number of decisions of its search."""


Subscription = asyncio.Queue[Snapshot | None]


@dataclass
class _Channel:
    """Listeners of one experiment. Changes in place."""

    mailboxes: list[Subscription] = field(default_factory=list)
    newcomers: list[Subscription] = field(default_factory=list)
    """Subscriptions that have not received a snapshot yet."""
    news: Snapshot | None = None


class Feed:
    """The poller and its listeners. Belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._channels: dict[str, _Channel] = {}
        self._poller: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @contextmanager
    def listen(self, experiment_id: str) -> Iterator[Subscription]:
        """Yield a queue that receives a snapshot of the experiment at once and whenever it changes,
        and None when it is deleted.

        If the queue is full, the oldest snapshot is dropped.
        """
        mailbox: Subscription = asyncio.Queue(BACKLOG)
        channel = self._channels.setdefault(experiment_id, _Channel())
        channel.mailboxes.append(mailbox)
        channel.newcomers.append(mailbox)
        self._hurry.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield mailbox
        finally:
            channel.mailboxes.remove(mailbox)
            if not channel.mailboxes:
                self._channels.pop(experiment_id, None)

    async def close(self) -> None:
        """Stop polling."""
        if self._poller is not None:
            self._poller.cancel()
            with suppress(asyncio.CancelledError):
                await self._poller

    async def lines(self, after: Mapping[str, int]) -> Sequence[SerializedRow]:
        """Return some rows after the given round of each run, the rows of each run in order; empty
        at the end.
        """
        return await asyncio.to_thread(read_lines, self._database, after)

    async def decisions(self, experiment_id: str, told: int) -> Sequence[str]:
        """Return some decisions after the first `told`, in order, as JSON; empty at the end."""
        return await asyncio.to_thread(read_decisions, self._database, experiment_id, told)

    async def _poll(self) -> None:
        pause = FASTEST_S
        while self._channels:
            pause = (
                FASTEST_S if await self._refresh(dict(self._channels)) else min(pause * SLOWING, SLOWEST_S)
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)
                pause = FASTEST_S
            self._hurry.clear()

    async def _refresh(self, channels: Mapping[str, _Channel]) -> bool:
        """Read the experiments, and notify all listeners of experiments that changed, and all new
        listeners.

        Returns whether any has changed.
        """
        newcomers = {experiment_id: channel.newcomers for experiment_id, channel in channels.items()}
        for channel in channels.values():
            channel.newcomers = []
        before = {experiment_id: channel.news for experiment_id, channel in channels.items()}
        try:
            found = await asyncio.to_thread(read_news, self._database, before)
        except Exception:
            # The database is away; listeners get heartbeats until it is back.
            log.warning("event poll failed", exc_info=True)
            for experiment_id, channel in channels.items():
                channel.newcomers += newcomers[experiment_id]
            return False
        changed = [self._spread(channel, newcomers[id], found.get(id)) for id, channel in channels.items()]
        return any(changed)

    def _spread(
        self, channel: _Channel, newcomers: Sequence[Subscription], snapshot: Snapshot | None
    ) -> bool:
        """Notify the listeners of one experiment, None: it was deleted. Returns whether it has
        changed.
        """
        if snapshot is None:
            _tell(channel.mailboxes, None)
            return False
        # Rows never come without rounds done, and are new only once.
        changed = channel.news is None or snapshot._replace(lines=()) != channel.news._replace(lines=())
        channel.news = snapshot
        _tell(channel.mailboxes if changed else newcomers, snapshot)
        return changed


def read_news(database: Database, before: Mapping[str, Snapshot | None]) -> dict[str, Snapshot]:
    """Read snapshots of the existing experiments, with the rows since the previous snapshots
    `before`.
    """
    with database.reading() as session:
        found = progress.experiment_snapshots(session, list(before))
        decided = search.decided(session, list(found))
    moved: dict[str, int] = {}
    of: dict[str, str] = {}
    for experiment_id, standing in found.items():
        known = before[experiment_id]
        for run_id, (_, done) in standing.runs.items():
            if known is not None and run_id in known.runs and done > known.runs[run_id][1]:
                moved[run_id], of[run_id] = known.runs[run_id][1], experiment_id
    lines: dict[str, list[SerializedRow]] = {experiment_id: [] for experiment_id in found}
    for line in read_lines(database, moved):
        lines[of[line.run_id]].append(line)
    return {
        id: Snapshot(standing.status, standing.runs, lines[id], decided.get(id, 0))
        for id, standing in found.items()
    }


def read_lines(database: Database, after: Mapping[str, int]) -> Sequence[SerializedRow]:
    """Read at most `ROWS` rows after the given round of each run, the rows of each run in order."""
    if not after:
        return ()
    with database.reading() as session:
        rows = curves.after_many(session, after, ROWS)
    return [
        SerializedRow(row.run_id, row.round, RoundEvent.model_validate(row).model_dump_json()) for row in rows
    ]


def read_decisions(database: Database, experiment_id: str, told: int) -> Sequence[str]:
    """Read at most `ROWS` decisions of an experiment's search after the first `told`, in order, as
    JSON.
    """
    with database.reading() as session:
        answers = arrival_answers(
            session, search.find(session, experiment_id), search.decisions(session, experiment_id, told, ROWS)
        )
    return [
        DecisionEvent(experiment_id=experiment_id, **answer.model_dump()).model_dump_json()
        for answer in answers
    ]


def _tell(mailboxes: Sequence[Subscription], snapshot: Snapshot | None) -> None:
    for mailbox in mailboxes:
        if mailbox.full():
            mailbox.get_nowait()
        mailbox.put_nowait(snapshot)
