"""News of the experiments that somebody listens to: one poller per process reads the database and tells all listeners."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from api.schemas import RoundEvent
from fedcore.errors import NotFoundError
from fedcore.store import Database, Status, experiments, progress, rounds

FASTEST_S = 0.1
SLOWEST_S = 1.0
SLOWING = 1.5
BACKLOG = 16
"""News a listener may be behind before it has to read the rest from the database."""
ROWS = 5_000
"""Rows read at a time."""

log = structlog.stdlib.get_logger("fedq.api")


class Line(NamedTuple):
    """A row, ready to be sent."""

    run_id: str
    round: int
    row: str
    """As JSON."""


class News(NamedTuple):
    """An experiment at one moment."""

    status: Status
    runs: Mapping[str, tuple[Status, int]]
    """Each run's status and rounds done, in order of run ids."""
    lines: Sequence[Line] = ()
    """Rows since the news before; the database has them all."""


Mailbox = asyncio.Queue[News | None]


@dataclass
class _Channel:
    """An experiment that is listened to. Changes in place."""

    mailboxes: list[Mailbox] = field(default_factory=list)
    newcomers: list[Mailbox] = field(default_factory=list)
    """Those of them that were told nothing yet."""
    news: News | None = None


class Feed:
    """The poller and those who listen. Belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._channels: dict[str, _Channel] = {}
        self._poller: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @contextmanager
    def listen(self, experiment_id: str) -> Iterator[Mailbox]:
        """A mailbox that gets how an experiment stands, at once and whenever it changes, and None when it is deleted.

        When the mailbox is full, the oldest news are lost.
        """
        mailbox: Mailbox = asyncio.Queue(BACKLOG)
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

    async def lines(self, after: Mapping[str, int]) -> Sequence[Line]:
        """Some rows past the given round of each run, each run's in order; none when there are no more."""
        return await asyncio.to_thread(read_lines, self._database, after)

    async def _poll(self) -> None:
        pause = FASTEST_S
        while self._channels:
            changed = [await self._refresh(experiment_id, channel) for experiment_id, channel in list(self._channels.items())]
            pause = FASTEST_S if any(changed) else min(pause * SLOWING, SLOWEST_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)
                pause = FASTEST_S
            self._hurry.clear()

    async def _refresh(self, experiment_id: str, channel: _Channel) -> bool:
        """Read an experiment; tell its listeners if anything is new, and newcomers in any case."""
        newcomers, channel.newcomers = channel.newcomers, []
        try:
            news = await asyncio.to_thread(read_news, self._database, experiment_id, channel.news)
        except NotFoundError:
            _tell(channel.mailboxes, None)
            return False
        except Exception:
            # The database is away; listeners get heartbeats until it is back.
            log.warning("event poll failed", experiment_id=experiment_id, exc_info=True)
            channel.newcomers += newcomers
            return False
        changed = channel.news is None or news != channel.news._replace(lines=())
        channel.news = news
        _tell(channel.mailboxes if changed else newcomers, news)
        return changed


def read_news(database: Database, experiment_id: str, before: News | None) -> News:
    """An experiment now, with the rows since `before`; raises NotFoundError."""
    with database.reading() as session:
        status = experiments.find(session, experiment_id).status
        positions = progress.positions(session, experiment_id)
    news = News(status, positions)
    if before is None:
        return news
    moved = {run_id: before.runs[run_id][1] for run_id, (_, done) in positions.items() if done > before.runs.get(run_id, (None, done))[1]}
    return news._replace(lines=read_lines(database, moved))


def read_lines(database: Database, after: Mapping[str, int]) -> Sequence[Line]:
    """At most `ROWS` rows past the given round of each run, each run's in order."""
    if not after:
        return ()
    with database.reading() as session:
        rows = rounds.after_many(session, after, ROWS)
    return [Line(row.run_id, row.round, RoundEvent.model_validate(row).model_dump_json()) for row in rows]


def _tell(mailboxes: Sequence[Mailbox], news: News | None) -> None:
    for mailbox in mailboxes:
        if mailbox.full():
            mailbox.get_nowait()
        mailbox.put_nowait(news)
