"""Errors as pages for browsers; visitors without a key are asked to sign in."""

import json
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, cast
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from api.http.problems import MEDIA_TYPE
from api.web.rendering import is_fragment, page

Handler = Callable[[Request, Any], Response]
KEPT = ("retry-after", "allow")
"""Headers of a problem that its page keeps."""


def install(app: FastAPI) -> None:
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
        told = page(request, "error.html", response.status_code, problem=problem)
        told.headers.update({name: response.headers[name] for name in KEPT if name in response.headers})
        return told

    return answer


def _sign_in(request: Request) -> Response:
    """Redirect to `/sign-in`, and back afterwards."""
    if is_fragment(request):
        return Response(status_code=401, headers={"HX-Redirect": _current_address(request)})
    return RedirectResponse(_address(request.url.path, request.url.query), 303, {"Cache-Control": "no-store"})


def _current_address(request: Request) -> str:
    try:
        here = urlsplit(request.headers.get("hx-current-url", "/"))
    except ValueError:  # No browser sends such a URL.
        return _address("/", "")
    return _address(here.path, here.query)


def _address(path: str, query: str) -> str:
    wanted = f"{path}?{query}" if query else path
    return "/sign-in" if wanted == "/" else f"/sign-in?next={quote(wanted)}"
