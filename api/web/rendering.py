"""Pages from templates: what every one of them is told, and what browsers may do with it."""

from pathlib import Path
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from api.web import formatting
from fedcore.platform.access import Principal, Scope
from fedq.results import presentation

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Pages hold what users have written, so no script and no style in the page itself is run."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    # `no-referrer` would have browsers say of a form that it comes from nowhere.
    "Referrer-Policy": "same-origin",
}


class NavigationEntry(NamedTuple):
    """An entry of the navigation."""

    name: str
    path: str
    needed: Scope = Scope.READ
    """Whoever may less is not shown it."""


NAVIGATION = (
    NavigationEntry("Experiments", "/"),
    NavigationEntry("Compare", "/compare"),
    NavigationEntry("Submit", "/submit", Scope.SUBMIT),
    NavigationEntry("Queue", "/queue"),
    NavigationEntry("Keys", "/keys"),
    NavigationEntry("Webhooks", "/webhooks"),
    NavigationEntry("Audit", "/audit", Scope.ADMIN),
)

environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
environment.filters.update({**formatting.FILTERS, **presentation.FILTERS})


def page(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A page, or a part of one: the template with `context` and what all of them are told."""
    principal: Principal | None = getattr(request.state, "principal", None)
    known = {
        "principal": principal,
        "may": (lambda scope: principal is not None and principal.scope.covers(Scope(scope))),
        "path": request.url.path,
        "static": request.app.state.static,
        "navigation": [
            place for place in NAVIGATION if principal is not None and principal.scope.covers(place.needed)
        ],
    }
    return HTMLResponse(environment.get_template(template).render(known | context), status, HEADERS)


def is_fragment(request: Request) -> bool:
    """Return whether a page refreshes a part of itself."""
    return "hx-request" in request.headers
