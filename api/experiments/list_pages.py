"""`/`: the experiments, searched and filtered.

What many pages ask for at once: made once, and handed to all that ask within a moment.
"""

from collections.abc import Callable, Hashable
from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from threading import Lock
from time import monotonic
from typing import Annotated, Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator, StringConstraints

from api.experiments.responses import summary_answer
from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, Store
from api.web.rendering import is_fragment, page
from fedcore.platform.access import Principal
from fedcore.platform.status import Status
from fedcore.platform.store import Database, experiments, progress
from fedcore.platform.store.experiments import Filter
from fedq.schemas import ExperimentSummary

MAX_KEPT = 1_000

Value = TypeVar("Value")


class _Made(NamedTuple, Generic[Value]):
    until: float
    value: Value


class TtlCache(Generic[Value]):
    """Values by key, each for so many seconds. Changes in place; of one application."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s, self._made, self._locks = (
            lasts_s,
            dict[Hashable, _Made[Value]](),
            dict[Hashable, Lock](),
        )

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of `key`, made by `make` unless one was a moment ago.

        Those that ask meanwhile wait for it.
        """
        if len(self._locks) >= MAX_KEPT:
            self._locks, self._made = {}, {}
        with self._locks.setdefault(key, Lock()):
            known = self._made.get(key)
            if known is None or known.until < monotonic():
                known = _Made(monotonic() + self._lasts_s, make())
                self._made[key] = known
            return known.value


PAGE = 50
POLLED_S = 1.0
"""Pages that show the same are told the same for so long: of two hundred that are open each costs
next to nothing.
"""

router = APIRouter(include_in_schema=False)

# Forms send fields that nobody has filled in.
_Blank = BeforeValidator(lambda value: value or None)
Text = Annotated[Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] | None, _Blank, Query()]
Day = Annotated[date | None, _Blank, Query()]


class ListFilter(NamedTuple):
    """Fields of the form above the list; None: any."""

    search: str | None
    status: Status | None
    tag: str | None
    owner: str | None
    since: date | None
    until: date | None

    @classmethod
    async def read(
        cls,
        search: Text = None,
        status: Annotated[Status | None, _Blank, Query()] = None,
        tag: Text = None,
        owner: Text = None,
        since: Day = None,
        until: Day = None,
    ) -> Self:
        """From the address."""
        return cls(search, status, tag, owner, since, until)

    def filter(self, principal: Principal) -> Filter:
        """Return the filter of the query; days are in UTC, both ends included."""
        return Filter(
            owner=principal.sees or self.owner,
            status=self.status,
            tag=self.tag,
            created_after=_midnight(self.since) if self.since else None,
            # Nothing is submitted after the last day of the calendar, which has no next day.
            created_before=_midnight(self.until + timedelta(days=1))
            if self.until and self.until < date.max
            else None,
            search=self.search,
        )

    def address(self, cursor: str) -> str:
        """That of the page from `cursor` on."""
        return "?" + urlencode(
            {name: value for name, value in {**self._asdict(), "cursor": cursor}.items() if value}
        )


class ListPage(NamedTuple):
    """A page of the list."""

    items: list[ExperimentSummary]
    next: str | None
    digest: str
    """The same while nothing has changed."""


@router.get("/")
def read_list(
    request: Request,
    principal: Reader,
    database: Store,
    asked: Annotated[ListFilter, Depends(ListFilter.read)],
    cursor: Text = None,
    seen: Text = None,
) -> Response:
    """Newest first, a page at a time.

    Of all owners for administrators. 204 for a part of the page that shows that already.
    """
    wanted = asked.filter(principal)
    polls: TtlCache[ListPage] = request.app.state.listings
    # Whoever comes anew, as after a change of their own, is told what is so now.
    shown = (
        polls.get((wanted, cursor), lambda: _shown(database, wanted, cursor))
        if seen
        else _shown(database, wanted, cursor)
    )
    if is_fragment(request) and shown.digest == seen:
        return Response(status_code=204)
    template = "_list.html" if is_fragment(request) else "list.html"
    return page(
        request,
        template,
        shown=shown,
        asked=asked,
        cursor=cursor,
        statuses=[one for one in Status if one is not Status.AT_RUNG],
    )


def _shown(database: Database, wanted: Filter, cursor: str | None) -> ListPage:
    with database.reading() as session:
        found = experiments.page(session, wanted, limit=PAGE, cursor=cursor)
        progresses = progress.progress_of(session, [record.id for record in found.items])
    items = [summary_answer(record, progresses[record.id]) for record in found.items]
    return ListPage(
        items, found.next, sha256("".join(item.model_dump_json() for item in items).encode()).hexdigest()[:16]
    )


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
