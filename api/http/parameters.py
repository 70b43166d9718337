"""Query parameters: unknown ones are refused, and lists link to their next page."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Annotated

from fastapi import Depends, Query, Request, Response, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from api.http.problems import InvalidDocumentError
from fedq.schemas import Flaw


def refuse_unknown(request: Request) -> None:
    """Raise InvalidDocumentError for query parameters that the route of a request does not have.

    Pages have any: their scripts read some, and people share links with more.
    """
    if not request.query_params or not request.url.path.startswith("/v1/"):
        return
    route: APIRoute = request.scope["route"]
    fields = get_flat_params(route.dependant)
    known = sorted({field.alias for field in fields if isinstance(field.field_info, params.Query)})
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        flaws = [Flaw(pointer=f"?{name}", detail=unknown_parameter(name, known)) for name in unknown]
        raise InvalidDocumentError(flaws)


def unknown_parameter(name: str, known: Sequence[str]) -> str:
    """Return the error of a parameter that is not one of those `known`."""
    if not known:
        return "this takes no parameters"
    close = get_close_matches(name, known, 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown parameter{hint}; known ones are: {', '.join(known)}"


LinkNext = Callable[[str | None], str | None]
"""Tells the `Link` header the cursor of the next page, and returns it; None: there is none."""


# Declared async so that FastAPI calls it at once instead of in a thread.
async def _link_next(request: Request, response: Response) -> LinkNext:
    def link(cursor: str | None) -> str | None:
        if cursor is not None:
            following = request.url.include_query_params(cursor=cursor)
            # Without the host: a proxy may give the service another name.
            response.headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
        return cursor

    return link


NextLink = Annotated[LinkNext, Depends(_link_next)]
StartAfter = Annotated[
    int,
    Query(
        alias="cursor",
        ge=0,
        le=2**31 - 1,
        description="Return only items with a number above this one: the `next` value of the previous page.",
    ),
]
"""Number after which a page of rounds, log lines, samples or arrivals begins; 0 is before the first."""
