"""`/`: the experiments, searched and filtered."""

from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BeforeValidator, StringConstraints

from api.experiments.service import summary_answer
from api.http.authentication import Reader
from api.http.dependencies import NO_NUL, DatabaseDep
from api.web.rendering import is_fragment, render_page
from fedcore.platform.access import Principal
from fedcore.platform.status import Status
from fedcore.platform.store import Database, experiments, progress
from fedcore.platform.store.experiments import Filter
from fedq.schemas import ExperimentSummary

PAGE = 50

router = APIRouter(include_in_schema=False)

# Forms send empty fields, too.
_Blank = BeforeValidator(lambda value: value or None)
Text = Annotated[Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] | None, _Blank, Query()]
Day = Annotated[date | None, _Blank, Query()]


class ListFilter(NamedTuple):
    """Fields of the form above the list, in the query string; None: any."""

    search: Text = None
    status: Annotated[Status | None, _Blank, Query()] = None
    tag: Text = None
    owner: Text = None
    since: Day = None
    until: Day = None
    shown: Annotated[Literal["starred", "archived"] | None, _Blank, Query()] = None
    """Shows only experiments with a star, or only archived ones; None: all that are not archived."""

    def filter(self, principal: Principal) -> Filter:
        """Return the filter of the query; days are in UTC, both ends included."""
        return Filter(
            owner=self.owner,
            seen_by=principal.sees,
            status=self.status,
            tag=self.tag,
            created_after=_midnight(self.since) if self.since else None,
            # Nothing is submitted after the last day of the calendar, which has no next day.
            created_before=_midnight(self.until + timedelta(days=1))
            if self.until and self.until < date.max
            else None,
            search=self.search,
            starred=True if self.shown == "starred" else None,
            archived=self.shown == "archived",
        )

    def address(self, cursor: str) -> str:
        """Return the query string of the page that starts at `cursor`."""
        return "?" + urlencode(
            {name: value for name, value in {**self._asdict(), "cursor": cursor}.items() if value}
        )


class ListPage(NamedTuple):
    """Page of the list."""

    items: list[ExperimentSummary]
    next: str | None
    digest: str
    """Digest of everything shown; equal as long as nothing changes."""


@router.get("/")
@router.get("/experiments")
def read_list(
    request: Request,
    principal: Reader,
    database: DatabaseDep,
    asked: Annotated[ListFilter, Depends()],
    cursor: Text = None,
    seen: Text = None,
) -> Response:
    """Return a page of the list, newest first; administrators see all owners.

    204 if a refresh finds nothing changed.
    """
    wanted = asked.filter(principal)
    shown = _shown(database, wanted, cursor)
    if is_fragment(request) and shown.digest == seen:
        return Response(status_code=204)
    template = "_list.html" if is_fragment(request) else "list.html"
    return render_page(
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
