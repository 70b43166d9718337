"""Pages from templates: filters, the context that all pages share, errors as pages, and the static
files that pages load.

`/static` serves scripts and styles under an address that changes with their content, so that
browsers may keep them for good. Visitors without a key are asked to sign in.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, wraps
from hashlib import sha256
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope as AsgiScope

from api.http.dependencies import context_of
from api.http.problems import MEDIA_TYPE
from fedcore.lazy import markdown_it
from fedcore.platform.access import Scope
from fedq.results import presentation

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Pages contain text of users, so inline scripts and styles are not run."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    # `no-referrer` would have browsers say of a form that it comes from nowhere.
    "Referrer-Policy": "same-origin",
}


class NavigationEntry(NamedTuple):
    """Entry of the navigation."""

    name: str
    path: str
    needed: Scope = Scope.READ
    """Scope required to see the entry."""


NAVIGATION = (
    NavigationEntry("Experiments", "/"),
    NavigationEntry("Arms", "/arms"),
    NavigationEntry("Compare", "/compare"),
    NavigationEntry("Submit", "/submit", Scope.SUBMIT),
    NavigationEntry("Queue", "/queue"),
    NavigationEntry("Keys", "/keys"),
    NavigationEntry("Webhooks", "/webhooks"),
    NavigationEntry("Audit", "/audit", Scope.ADMIN),
)

SIZES = ("kB", "MB", "GB", "TB")


def ago(moment: datetime) -> str:
    """Format the time since `moment` as `5 min ago`."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if seconds < 60:
        return "just now"
    size, name = next((size, name) for size, name in presentation.UNITS if seconds >= size)
    return f"{seconds // size:.0f} {name} ago"


def clock(moment: datetime) -> str:
    """Format a time as `2026-01-31 12:00:00 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: float) -> str:
    """Format bytes as `1.5 MB`."""
    if count < 1_000:
        return f"{count:.0f} B"
    for name in SIZES:
        count /= 1_000
        # Three digits of more would be 1e+03.
        if count < 999.5 or name == SIZES[-1]:
            break
    return f"{count:.3g} {name}"


def count(number: int) -> str:
    """Format a number as `12,345`."""
    return f"{number:,}"


@cache
def _markdown() -> "markdown_it.MarkdownIt":
    return markdown_it.MarkdownIt("js-default").disable("image")


def markdown(text: str) -> Markup:
    """Render Markdown that users have written.

    HTML in it is shown as text, links lead to the web and to mail only, and there are no images,
    which a page would load from elsewhere. Headings are one level below the page's.
    """
    parser = _markdown()
    tokens = parser.parse(text)
    for token in tokens:
        if token.type.startswith("heading"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
        # The policy of pages forbids `style`, which would align the columns of a table.
        if (style := token.attrs.pop("style", None)) is not None:
            token.attrs["align"] = str(style).removeprefix("text-align:")
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - the renderer escapes HTML


def prose(text: str) -> Markup:
    """Show what stands between backticks in a message as code."""
    pieces = enumerate(re.split("`([^`]+)`", text))
    return Markup("").join(
        Markup("<code>{}</code>").format(one) if place % 2 else one for place, one in pieces
    )


Handler = Callable[[Request, Any], Response]
KEPT = ("retry-after", "allow")
"""Headers of a problem that its page keeps."""

environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
environment.filters.update(presentation.FILTERS)
environment.filters.update(
    (function.__name__, function) for function in (prose, markdown, ago, clock, size, count)
)


def render_page(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """Render a page or a part of one: a template with `context` and what all templates need."""
    principal = context_of(request.scope).principal
    known = {
        "principal": principal,
        "may": (lambda scope: principal is not None and principal.scope.covers(Scope(scope))),
        "path": request.url.path,
        "static": f"/static/{static_digest()}",
        "navigation": [
            place for place in NAVIGATION if principal is not None and principal.scope.covers(place.needed)
        ],
    }
    return HTMLResponse(environment.get_template(template).render(known | context), status, HEADERS)


def is_fragment(request: Request) -> bool:
    """Return whether a page refreshes a part of itself."""
    return "hx-request" in request.headers


STATIC = Path(__file__).parent / "static"
FOREVER = "public, max-age=31536000, immutable"
DIGITS = 12


class Assets(StaticFiles):
    """Files below `STATIC`, each at `/DIGEST/PATH`.

    Scripts that import others by relative paths thus get scripts of the same release.
    """

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    async def get_response(self, path: str, scope: AsgiScope) -> Response:
        """Return one file; under the digest of another release it is not cached."""
        digest, _, rest = path.partition("/")
        response = await super().get_response(rest, scope)
        response.headers["Cache-Control"] = FOREVER if digest == static_digest() else "no-cache"
        return response


@cache
def static_digest() -> str:
    """Return the digest of the static files of this release."""
    return digest_of(STATIC)


def digest_of(folder: Path) -> str:
    """Return a digest of the files' names and contents."""
    total = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(
            f"{path.relative_to(folder).as_posix()}\0{sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return total.hexdigest()[:DIGITS]


def install_error_pages(app: FastAPI) -> None:
    """Install handlers that answer errors as pages to browsers."""
    for kind, handler in list(app.exception_handlers.items()):
        if not iscoroutinefunction(handler):
            app.add_exception_handler(kind, _as_page(cast("Handler", handler)))


def wants_page(request: Request) -> bool:
    """Return whether a page is wanted: HTML, and not below `/v1`."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/")


def _as_page(handler: Handler) -> Handler:
    @wraps(handler)
    def answer(request: Request, error: Any) -> Response:
        response = handler(request, error)
        if response.media_type != MEDIA_TYPE or not wants_page(request):
            return response
        if response.status_code == 401:
            return _sign_in(request)
        problem = json.loads(bytes(response.body))
        told = render_page(request, "error.html", response.status_code, problem=problem)
        told.headers.update({name: response.headers[name] for name in KEPT if name in response.headers})
        return told

    return answer


def _sign_in(request: Request) -> Response:
    """Redirect to `/sign-in`, and back afterwards."""
    if is_fragment(request):
        return Response(status_code=401, headers={"HX-Redirect": _current_address(request)})
    return RedirectResponse(
        _sign_in_address(request.url.path, request.url.query), 303, {"Cache-Control": "no-store"}
    )


def _current_address(request: Request) -> str:
    try:
        here = urlsplit(request.headers.get("hx-current-url", "/"))
    except ValueError:  # No browser sends such a URL.
        return _sign_in_address("/", "")
    return _sign_in_address(here.path, here.query)


def _sign_in_address(path: str, query: str) -> str:
    wanted = f"{path}?{query}" if query else path
    return "/sign-in" if wanted == "/" else f"/sign-in?next={quote(wanted)}"
