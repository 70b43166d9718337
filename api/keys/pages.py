"""`/keys`: one's own key and what is left of its quotas.

For administrators all keys, made, changed and revoked.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from api.http.authentication import Administrator, Reader
from api.http.dependencies import Cursor, OwnerFilter, Store, TargetFilter
from api.keys.responses import key_answer
from api.web import formatting
from api.web.rendering import page
from fedcore.platform.access import Scope
from fedcore.platform.store import audit, keys, quotas
from fedcore.platform.store.clock import transaction_time
from fedcore.platform.store.quotas import Usage
from fedq.schemas import Key, KeyEdit

PAGE = 50

router = APIRouter(include_in_schema=False)


QUOTAS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("waiting_runs", "queued and paused runs", formatting.count),
    ("running_runs", "running runs", formatting.count),
    ("stored_bytes", "data sets", formatting.size),
    ("compute_seconds", "computing time", formatting.duration),
)
"""Fields of a usage, those of a key beginning with `max_`; what they count; how it is written."""


class Allowance(NamedTuple):
    """One of a key's quotas, and how much of it is used."""

    words: str
    used: str
    most: str | None
    """None: as much as it likes."""
    share: float
    """Used of it, 0 to 1."""


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
def read(request: Request, principal: Reader, database: Store, cursor: Cursor = None) -> Response:
    """The page. It writes through `/v1/keys` alone."""
    listed: dict[str, Any] = {"rows": None, "next": None}
    with database.reading() as session:
        own = keys.find(session, principal.key_id)
        usage = quotas.usage(session, own)
        if principal.scope.covers(Scope.ADMIN):
            found = keys.page(session, limit=PAGE, cursor=cursor)
            listed = {
                "rows": [_row(key_answer(record), transaction_time(session)) for record in found.items],
                "next": found.next,
            }
    answer = key_answer(own)
    return page(request, "keys.html", own=answer, allowances=_allowances(answer, usage), **listed)


@router.get("/audit")
def read_audit(
    request: Request,
    _principal: Administrator,
    database: Store,
    owner: OwnerFilter = None,
    target: TargetFilter = None,
    cursor: Cursor = None,
) -> Response:
    """Who changed what; empty filters count as none."""
    with database.reading() as session:
        found = audit.page(session, owner=owner or None, target=target or None, limit=PAGE, cursor=cursor)
    return page(
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
