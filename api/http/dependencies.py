"""Dependencies of endpoints: database, storage and settings, and parameters that are safe in a
query.
"""

import re
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request
from pydantic import AfterValidator, AwareDatetime, BeforeValidator

from fedcore.errors import ResourceNotFoundError
from fedcore.platform.storage import Storage
from fedcore.platform.store import Database
from fedcore.platform.wakeups import WakeupNotifier
from fedcore.settings import Settings

NO_NUL = r"^[^\x00]*$"
"""PostgreSQL stores no NUL, and so finds none."""
_NUMBER = re.compile(r"[-+]?[0-9.]+")
"""Reject numbers, which pydantic would interpret as seconds since 1970."""


# Declared async so that FastAPI calls them at once instead of in a thread.
async def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


async def _storage(request: Request) -> Storage:
    storage: Storage = request.app.state.storage
    return storage


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _wake(request: Request) -> Callable[[str], None]:
    wakeups: WakeupNotifier = request.app.state.wakeups
    return lambda queue: wakeups.notify([queue])


def printable(identifier: str) -> str:
    """An id that a query may be asked for; raises ResourceNotFoundError."""
    if not identifier.isprintable():
        raise ResourceNotFoundError(f"not found: {identifier!r}")
    return identifier


def _no_number(text: str) -> str:
    if _NUMBER.fullmatch(text):
        raise ValueError("must be an ISO 8601 time, e.g. 2026-01-31T12:00:00Z")
    return text


Store = Annotated[Database, Depends(_database)]
Files = Annotated[Storage, Depends(_storage)]
Configuration = Annotated[Settings, Depends(_settings)]
Wake = Annotated[Callable[[str], None], Depends(_wake)]
"""Wakes a worker of a queue; call it after the commit."""

ExperimentId = Annotated[
    str,
    Path(description="The experiment's id.", examples=["exp_01k9x3zq7rh2v8m4t6w0ybe5nc"]),
    AfterValidator(printable),
]
RunId = Annotated[
    str,
    Path(description="The run's id.", examples=["run_01k9x3zq7rh2v8m4t6w0ybe5p0"]),
    AfterValidator(printable),
]
DatasetId = Annotated[
    str,
    Path(description="The data set's id.", examples=["set_01k9x3zq7rh2v8m4t6w0ybe5m2"]),
    AfterValidator(printable),
]
WebhookId = Annotated[
    str,
    Path(description="The webhook's id.", examples=["whk_01k9x3zq7rh2v8m4t6w0ybe5h1"]),
    AfterValidator(printable),
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
            "Repeating a request with the same key and body returns the original result; a different body is"
            " rejected."
        ),
    ),
]
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
