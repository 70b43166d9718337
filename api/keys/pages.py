"""`/keys` and `/audit`: the caller's key and quotas; for administrators all keys and the audit log."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from api.http.authentication import Administrator, Reader
from api.http.dependencies import Cursor, DatabaseDep, OwnerFilter, TargetFilter
from api.web import rendering
from api.web.rendering import render_page
from fedcore.platform.access import Scope
from fedcore.platform.store import audit, keys, quotas
from fedcore.platform.store.clock import database_time
from fedcore.platform.store.quotas import Usage
from fedq.results import presentation
from fedq.schemas import Key, KeyEdit

PAGE = 50

router = APIRouter(include_in_schema=False)


QUOTAS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("waiting_runs", "queued and paused runs", rendering.count),
    ("running_runs", "running runs", rendering.count),
    ("stored_bytes", "uploads", rendering.size),
    ("compute_seconds", "computing time", presentation.duration),
)
"""Field of the usage (with prefix `max_` of the key), label, and format."""


class Allowance(NamedTuple):
    """Quota of a key, and how much of it is used."""

    words: str
    used: str
    most: str | None
    """None: no limit."""
    share: float
    """Used fraction, 0 to 1."""


class KeyRow(NamedTuple):
    """A key in the list."""

    key: Key
    state: str
    """`valid`, `expired` or `revoked`."""
    limits: Sequence[str]
    """Its quotas in words."""
    terms: str
    """Its editable fields, as JSON for the form."""


@router.get("/keys")
def read(request: Request, principal: Reader, database: DatabaseDep, cursor: Cursor = None) -> Response:
    """Return the page; it writes through `/v1/keys` only."""
    listed: dict[str, Any] = {"rows": None, "next": None}
    with database.reading() as session:
        own = keys.find(session, principal.key_id)
        usage = quotas.usage(session, own)
        if principal.scope.covers(Scope.ADMIN):
            found = keys.page(session, limit=PAGE, cursor=cursor)
            listed = {
                "rows": [_row(Key.model_validate(record), database_time(session)) for record in found.items],
                "next": found.next,
            }
    answer = Key.model_validate(own)
    return render_page(request, "keys.html", own=answer, allowances=_allowances(answer, usage), **listed)


@router.get("/audit")
def read_audit(
    request: Request,
    _principal: Administrator,
    database: DatabaseDep,
    owner: OwnerFilter = None,
    target: TargetFilter = None,
    cursor: Cursor = None,
) -> Response:
    """Return the audit log; empty filters are ignored."""
    with database.reading() as session:
        found = audit.page(session, owner=owner or None, target=target or None, limit=PAGE, cursor=cursor)
    return render_page(
        request, "audit.html", entries=found.items, next=found.next, owner=owner or "", target=target or ""
    )


def _row(key: Key, now: datetime) -> KeyRow:
    expired = key.expires_at is not None and key.expires_at <= now
    state = "revoked" if key.revoked_at is not None else "expired" if expired else "valid"
    limits = [
        (name, write(most))
        for field, name, write in QUOTAS
        if (most := getattr(key, f"max_{field}")) is not None
    ]
    return KeyRow(
        key,
        state,
        [f"{name}: {most}" for name, most in limits],
        key.model_dump_json(include=set(KeyEdit.model_fields)),
    )


def _allowances(key: Key, usage: Usage) -> list[Allowance]:
    return [
        _allowance(name, getattr(usage, field), getattr(key, f"max_{field}"), write)
        for field, name, write in QUOTAS
    ]


def _allowance(name: str, used: float, most: float | None, write: Callable[[Any], str]) -> Allowance:
    share = 0.0 if most is None else min(1.0, used / most) if most else 1.0
    return Allowance(name, write(used), None if most is None else write(most), share)
