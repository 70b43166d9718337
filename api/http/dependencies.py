"""Dependencies of endpoints: the state of the application, and parameters that are safe in a
query.

`AppState` and `RequestContext` are all that modules share beside arguments.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, Header, Path, Query, Request
from pydantic import AwareDatetime, BeforeValidator
from starlette.concurrency import run_in_threadpool

from api.http.gates import OwnerGate, UploadSlots
from fedcore.errors import ResourceNotFoundError
from fedcore.platform.access import Principal
from fedcore.platform.identifiers import is_id
from fedcore.platform.storage import Storage
from fedcore.platform.store import Database
from fedcore.platform.store.records import resolve
from fedcore.platform.store.tables import Base, DatasetRecord, ExperimentRecord, RunRecord, WebhookRecord
from fedcore.platform.wakeups import WakeupNotifier
from fedcore.settings import Settings

if TYPE_CHECKING:  # They use this module.
    from api.http.authentication import KeyAuthenticator
    from api.http.metrics import Metrics
    from api.http.rate_limit import RateLimiter

NO_NUL = r"^[^\x00]*$"
"""PostgreSQL stores no NUL, and so finds none."""
_NUMBER = re.compile(r"[-+]?[0-9.]+")
"""Reject numbers, which pydantic would interpret as seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """State that requests of several resources share; `api.app.share_state` builds it.

    The state of a single resource is beside it in the state of the application, and a dependency that the
    resource declares.
    """

    settings: Settings
    database: Database
    storage: Storage
    authenticator: KeyAuthenticator
    rate_limiter: RateLimiter
    metrics: Metrics
    wakeups: WakeupNotifier
    """Wakes a worker of a queue; to be called after the commit."""
    reading_gate: OwnerGate
    """Tables and results of any number of arms, two at a time: results of thousands of arms take
    seconds.
    """
    upload_slots: UploadSlots
    upload_gate: CapacityLimiter
    """One data set is checked at a time: its arrays are in memory."""
    code_slots: UploadSlots
    """Two code bundles of one key are checked or used for a specification at a time; others wait."""
    code_gate: CapacityLimiter
    """One code bundle is checked at a time: its process loads PyTorch."""
    document_gate: CapacityLimiter
    """One large request body is handled at a time."""


@dataclass(slots=True)
class RequestContext:
    """Facts of one request that its errors, pages and audit entries need. Changes in place."""

    request_id: str = ""
    principal: Principal | None = None
    """Owner of the API key, once it is verified."""
    is_dry_run: bool = False
    """True if the request changes nothing, whatever its outcome."""
    yaml: str | None = None
    """A YAML body, in which errors are located by line and column."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers that the response has whatever comes of the request."""


# Declared async so that FastAPI calls them at once instead of in a thread.
async def _state(request: Request) -> AppState:
    return state_of(request)


def state_of(request: Request) -> AppState:
    """Return the state of the application that serves a request."""
    state: AppState = request.app.state.fedq
    return state


def context_of(scope: MutableMapping[str, Any]) -> RequestContext:
    """Return the context of a request by its ASGI scope; the first call creates it."""
    context: RequestContext = scope.setdefault("state", {}).setdefault("fedq", RequestContext())
    return context


async def _database(request: Request) -> Database:
    return state_of(request).database


async def _settings(request: Request) -> Settings:
    return state_of(request).settings


def printable(identifier: str) -> str:
    """Return an id if it is safe in a query; raises ResourceNotFoundError."""
    if not identifier.isprintable():
        raise ResourceNotFoundError(f"not found: {identifier!r}")
    return identifier


def _no_number(text: str) -> str:
    if _NUMBER.fullmatch(text):
        raise ValueError("must be an ISO 8601 time, e.g. 2026-01-31T12:00:00Z")
    return text


AppStateDep = Annotated[AppState, Depends(_state)]
DatabaseDep = Annotated[Database, Depends(_database)]
SettingsDep = Annotated[Settings, Depends(_settings)]

REFERENCE = "{}'s id, a unique beginning of it, {}or `@last`, the newest one of the key's owner."
"""Description of a parameter that `resolve_id` reads."""


async def resolve_id(request: Request, kind: type[Base], given: str) -> str:
    """Return the id that `given` stands for; see `records.resolve`.

    The principal is known: endpoints list it as their first parameter.
    """
    given, principal = printable(given), context_of(request.scope).principal
    if is_id(given) or principal is None:
        return given

    def find() -> str:
        with state_of(request).database.reading() as session:
            return resolve(session, kind, given, principal.sees, principal.owner)

    return await run_in_threadpool(find)


def _id_in_path(kind: type[Base], parameter: str, noun: str, example: str, *, named: bool = True) -> Any:
    """Return the dependency that reads the id of a `noun` from a path; users may write its name if it is
    `named`.
    """
    description = REFERENCE.format(f"The {noun}", "its name " if named else "")
    place = Path(alias=parameter, description=description, examples=[example])

    async def resolved(request: Request, given: str = place) -> str:
        return await resolve_id(request, kind, given)

    return Depends(resolved)


ExperimentId = Annotated[
    str, _id_in_path(ExperimentRecord, "experiment_id", "experiment", "exp_01k9x3zq7rh2v8m4t6w0ybe5nc")
]
RunId = Annotated[str, _id_in_path(RunRecord, "run_id", "run", "run_01k9x3zq7rh2v8m4t6w0ybe5p0", named=False)]
DATASET_ID = _id_in_path(DatasetRecord, "dataset_id", "data set", "set_01k9x3zq7rh2v8m4t6w0ybe5m2")
WebhookId = Annotated[
    str, _id_in_path(WebhookRecord, "webhook_id", "webhook", "whk_01k9x3zq7rh2v8m4t6w0ybe5h1")
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x20-\x7e]+$",
        examples=["7f3c9a52-thesis-figure-4"],
        description=(
            "Repeating a request with the same key and body returns the original result, with the header"
            " `Idempotency-Replayed: true`; a different body is rejected."
        ),
    ),
]
REPLAYED = {"Idempotency-Replayed": "true"}
"""Header of an answer to a repeated request with an idempotency key."""


def created(noun: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI description of a 201 with the URL of a new `noun`."""
    location = {"description": f"URL of the {noun}.", "schema": {"type": "string"}}
    return {201: {"headers": {"Location": location}}}


Moment = Annotated[AwareDatetime, BeforeValidator(_no_number)]
OwnerFilter = Annotated[
    str | None,
    Query(max_length=200, pattern=NO_NUL, description="Only actions of this owner.", examples=["ada"]),
]
TargetFilter = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=NO_NUL,
        description="Only actions on this id.",
        examples=["exp_01k9x3zq7rh2v8m4t6w0ybe5nc"],
    ),
]
Cursor = Annotated[
    str | None, Query(max_length=64, pattern=NO_NUL, description="The `next` value of the previous page.")
]
