"""API keys."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedcore.platform.access import Scope
from fedq.schemas.base import Schema, StoredMoment


def _no_number(value: object) -> object:
    """Pydantic would take one for the seconds since 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and "-" in value[1:]):
        return value
    raise ValueError("must be a time in ISO 8601, as 2026-01-31T12:00:00Z")


def _number(value: object) -> object:
    """Pydantic would take these for numbers."""
    if isinstance(value, bool | str):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic reports no others
    return value


Owner = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.@+-]+$")]


Expiry = Annotated[StoredMoment, BeforeValidator(_no_number)] | None
MaxRuns = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_number)] | None
MaxBytes = Annotated[int, Field(ge=0, le=2**62), BeforeValidator(_number)] | None
MaxSeconds = Annotated[float, Field(ge=0, le=1e12), BeforeValidator(_number)] | None


class _Terms(BaseModel):
    """What a key is good for."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scope: Scope = Scope.SUBMIT
    """What it allows; each scope includes those before it: `read`, `submit`, `admin`."""
    name: Annotated[str, Field(max_length=200)] = ""
    """For people: what it is for."""
    expires_at: Expiry = None
    """When it ends (ISO 8601 with time zone); null: when it is revoked."""
    max_waiting_runs: MaxRuns = None
    """Runs made with it that may be queued or paused at a time; null: as many as it likes."""
    max_running_runs: MaxRuns = None
    """Runs made with it that may be running at a time, others wait; null: as many as it likes."""
    max_stored_bytes: MaxBytes = None
    """Bytes that data sets uploaded with it may take; null: as many as it likes."""
    max_compute_seconds: MaxSeconds = None
    """Seconds that the rounds of runs made with it may take in all, before it may start no more; null: as many as it likes."""


class KeyEdit(_Terms):
    """What can be changed of a key; a field that is left out stays."""


class KeyRequest(_Terms):
    """A key that is to be made."""

    owner: Owner
    """Whose things it makes and sees: letters, digits and `_.@+-`. An owner may have several keys."""


class Key(Schema):
    """An API key, without its secret."""

    id: str
    """Opaque; sorts by time of creation."""
    prefix: str
    """How the key begins."""
    name: str
    """What it is for."""
    owner: str
    """Whose things it makes and sees."""
    scope: Scope
    """What it allows."""
    created_at: datetime
    """When it was made (UTC)."""
    expires_at: datetime | None
    """When it ends (UTC); null: when it is revoked."""
    revoked_at: datetime | None
    """When it was revoked (UTC)."""
    last_used_at: datetime | None
    """When it was used last (UTC), to the minute."""
    max_waiting_runs: int | None
    """Runs made with it that may be queued or paused at a time; null: as many as it likes."""
    max_running_runs: int | None
    """Runs made with it that may be running at a time, others wait; null: as many as it likes."""
    max_stored_bytes: int | None
    """Bytes that data sets uploaded with it may take; null: as many as it likes."""
    max_compute_seconds: float | None
    """Seconds that the rounds of runs made with it may take in all; null: as many as it likes."""


class NewKey(Key):
    """An API key that has just been made."""

    key: str
    """The key itself. It cannot be read again."""


class KeyPage(Schema):
    """A page of keys, newest first."""

    items: list[Key]
    """The keys."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""


class KeyUsage(Schema):
    """What was made with a key, as its quotas count it."""

    waiting_runs: int
    """Runs that are queued or paused."""
    running_runs: int
    """Runs that workers have."""
    stored_bytes: int
    """Bytes of uploaded data sets."""
    compute_seconds: float
    """Seconds that rounds took, those of deleted runs too."""


class KeyStanding(Schema):
    """A key, and how much of its quotas is used."""

    key: Key
    """The key."""
    usage: KeyUsage
    """What was made with it."""


class Me(KeyStanding):
    """Whoever asks: the key that was sent."""
