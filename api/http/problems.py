"""Errors as RFC 9457 `application/problem+json`, from one table of error classes and statuses."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, Self

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from api.http.dependencies import context_of, state_of
from api.http.middleware import HttpMiddleware
from fedcore.errors import (
    AuthenticationError,
    BusyError,
    DataUnavailableError,
    FedcoreError,
    ForbiddenError,
    IdempotencyError,
    PresetNotFoundError,
    QuotaError,
    RateError,
    ResourceNotFoundError,
    SpecificationError,
    StateConflictError,
    StorageError,
    UploadError,
)
from fedcore.platform.store import UNAVAILABLE
from fedcore.spec.validation import detail_of, join_pointer
from fedq.schemas import Flaw, ProblemDetails
from fedq.validation_errors import locate_errors

MEDIA_TYPE = "application/problem+json"
BLANK = "about:blank"
log = structlog.stdlib.get_logger("fedq.api")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class ProblemType(NamedTuple):
    """Status, problem type and title for a class of errors."""

    status: int
    kind: str
    title: str

    @property
    def uri(self) -> str:
        """`type` of the problem details."""
        return self.kind if self.kind == BLANK else f"urn:fedq:problem:{self.kind}"


def blank(status: int) -> ProblemType:
    """Return the problem type of an error that its status describes."""
    return ProblemType(status, BLANK, HTTPStatus(status).phrase)


INVALID = ProblemType(422, "invalid", "Invalid request")
ANSWERS: dict[type[FedcoreError], ProblemType] = {
    SpecificationError: ProblemType(422, "specification", "Invalid specification"),
    UploadError: ProblemType(422, "upload", "Invalid upload"),
    DataUnavailableError: ProblemType(422, "data-unavailable", "Data set not available"),
    IdempotencyError: ProblemType(422, "idempotency", "Idempotency key reused"),
    PresetNotFoundError: ProblemType(404, "not-found", "Preset not found"),
    ResourceNotFoundError: ProblemType(404, "not-found", "Not found"),
    AuthenticationError: ProblemType(401, "unauthenticated", "API key required"),
    ForbiddenError: ProblemType(403, "forbidden", "Not permitted"),
    QuotaError: ProblemType(403, "quota", "Quota exceeded"),
    RateError: ProblemType(429, "rate", "Too many requests"),
    StateConflictError: ProblemType(409, "conflict", "Conflict with the current state"),
    BusyError: blank(503),
}


class InvalidDocumentError(Exception):
    """A body that is readable but not valid."""

    def __init__(self, flaws: Sequence[Flaw]) -> None:
        super().__init__("; ".join(f"{flaw.pointer}: {flaw.detail}" for flaw in flaws))
        self.flaws = list(flaws)

    @classmethod
    def at(cls, pointer: str, detail: str) -> Self:
        """Return the error of one field."""
        return cls([Flaw(pointer=pointer, detail=detail)])


class UnreadableBodyError(Exception):
    """A body that cannot be parsed."""

    def __init__(self, detail: str, flaw: Flaw) -> None:
        super().__init__(detail)
        self.flaw = flaw


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI descriptions of the errors of an operation."""
    schema = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: schema}}
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Install handlers that answer every error of `app` as a problem."""
    app.add_exception_handler(InvalidDocumentError, _invalid_request)
    app.add_exception_handler(UnreadableBodyError, _unreadable_body)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _incomplete_body)
    app.add_exception_handler(FedcoreError, _fedcore)
    app.add_exception_handler(StorageError, _no_storage)
    for kind in UNAVAILABLE:
        app.add_exception_handler(kind, _unavailable)
    app.add_exception_handler(Exception, _unexpected)


class UnhandledErrorMiddleware(HttpMiddleware):
    """Middleware that turns unexpected errors into responses.

    It lies below the middlewares that add headers and log the request.
    """

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            if started:
                raise
            # By the handler that is installed: browsers are answered with a page.
            response: Response = scope["app"].exception_handlers[Exception](Request(scope), error)
            await response(scope, receive, send)


def _problem(
    request: Request, answer: ProblemType, detail: str, errors: Sequence[Flaw] = (), headers: Any = None
) -> Response:
    yaml = context_of(request.scope).yaml
    body = ProblemDetails(
        type=answer.uri,
        title=answer.title,
        status=answer.status,
        detail=detail,
        instance=request.url.path,
        errors=list(errors) if yaml is None else locate_errors(errors, yaml),
    )
    return Response(body.model_dump_json(exclude_none=True), answer.status, headers, MEDIA_TYPE)


def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidDocumentError)
    return _problem(request, INVALID, str(error), error.flaws)


def _unreadable_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, UnreadableBodyError)
    return _problem(request, blank(400), str(error), [error.flaw])


def _invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _invalid_request(request, InvalidDocumentError([_parameter_flaw(flaw) for flaw in error.errors()]))


def _parameter_flaw(error: Any) -> Flaw:
    source, name = error["loc"][:2]
    return Flaw(pointer=f"?{name}" if source == "query" else str(name), detail=detail_of(error))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = blank(error.status_code)
    path = request.url.path
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return _problem(request, answer, f"Not found: {path}")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = ", ".join(_allowed(request))
            return _problem(
                request, answer, f"{path} allows {allowed}, not {request.method}.", headers={"Allow": allowed}
            )
        case _:
            return _problem(request, answer, error.detail, headers=error.headers)


def _incomplete_body(request: Request, _error: Exception) -> Response:
    """Answer a client that was too slow (`api.http.middleware.BodyTimeout`).

    One that has disconnected is only logged.
    """
    answer = blank(408)
    return _problem(
        request, answer, "The body was incomplete or arrived too slowly.", headers={"Connection": "close"}
    )


def _allowed(request: Request) -> list[str]:
    """Methods allowed on the path, of all its routes; the router itself names the methods of one
    route only.
    """
    scopes = [{**request.scope, "method": method} for method in METHODS]
    return [
        scope["method"]
        for scope in scopes
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]


def _fedcore(request: Request, error: Exception) -> Response:
    answer = next((ANSWERS[kind] for kind in type(error).__mro__ if kind in ANSWERS), None)
    if answer is None:
        return _unexpected(request, error)
    if isinstance(error, SpecificationError):
        return _problem(request, answer, str(error), [Flaw(pointer=error.pointer, detail=error.detail)])
    if isinstance(error, UploadError):
        return _problem(
            request,
            answer,
            str(error),
            [Flaw(pointer=join_pointer([error.name] if error.name else []), detail=error.detail)],
        )
    return _problem(request, answer, str(error), headers=_hints(error))


def _hints(error: Exception) -> dict[str, str] | None:
    """Response headers for the error."""
    match error:
        case AuthenticationError():
            return {"WWW-Authenticate": 'Bearer realm="FedQ"'}
        case RateError(wait_s=wait_s):
            return {"Retry-After": str(wait_s)}
        case BusyError():
            return {"Retry-After": "30"}
        case _:
            return None


def _unavailable(request: Request, error: Exception) -> Response:
    log.warning("database unavailable", path=request.url.path, error=str(error))
    state_of(request).metrics.unavailable.inc()
    return _problem(
        request, blank(503), "The database is unavailable. Try again.", headers={"Retry-After": "1"}
    )


def _no_storage(request: Request, error: Exception) -> Response:
    log.warning("storage unavailable", path=request.url.path, error=str(error))
    return _problem(
        request,
        blank(503),
        "The storage is unavailable or full. Try again later.",
        headers={"Retry-After": "10"},
    )


def _unexpected(request: Request, error: Exception) -> Response:
    log.error("unexpected error", path=request.url.path, exc_info=error)
    return _problem(request, blank(500), "Internal error. See the log of the service for details.")
