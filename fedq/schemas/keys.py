"""API keys, and the audit log."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field

from fedcore.block import Name
from fedcore.platform.access import Scope
from fedq.schemas.base import ExperimentId, KeyId, RequestBody, Schema, StoredMoment, UserName


def _no_number(value: object) -> object:
    """Reject numbers, which pydantic would interpret as seconds since 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and "-" in value[1:]):
        return value
    raise ValueError("must be an ISO 8601 time, e.g. 2026-01-31T12:00:00Z")


def _number(value: object) -> object:
    """Reject booleans and strings, which pydantic would convert to numbers."""
    if isinstance(value, bool | str):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic reports no others
    return value


Owner = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.@+-]+$", examples=["ada"])]


Expiry = Annotated[StoredMoment, BeforeValidator(_no_number)] | None
MaxRuns = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_number)] | None
MaxBytes = Annotated[int, Field(ge=0, le=2**62), BeforeValidator(_number)] | None
MaxSeconds = Annotated[float, Field(ge=0, le=1e12), BeforeValidator(_number)] | None


class _Terms(RequestBody):
    """Editable fields of a key."""

    scope: Scope = Scope.SUBMIT
    """Permissions: `read`, `submit` or `admin`; each scope includes those before it."""
    code: bool = False
    """Scope `code`: the key may also send code bundles, which workers run in confined processes. No
    other scope includes it.
    """
    name: Name = Field(default="", examples=["laptop"])
    """Purpose of the key."""
    expires_at: Expiry = None
    """Expiry time (ISO 8601 with time zone); null: never."""
    max_waiting_runs: MaxRuns = None
    """Maximum number of queued or paused runs; null: no limit."""
    max_running_runs: MaxRuns = Field(default=None, examples=[8])
    """Maximum number of concurrent runs, further runs stay queued; null: no limit."""
    max_stored_bytes: MaxBytes = None
    """Maximum size of uploaded data sets, code bundles and weights in bytes; null: no limit."""
    max_compute_seconds: MaxSeconds = None
    """Maximum total compute time of its runs in seconds, after which no further round starts; null:
    no limit.
    """


class KeyEdit(_Terms):
    """Changes to a key. Omitted fields keep their values."""


class KeyRequest(_Terms):
    """Request to create a key."""

    owner: Owner
    """Owner of everything created with the key: letters, digits and `_.@+-`. An owner can have
    several keys.
    """


class Key(Schema):
    """An API key, without its secret."""

    id: KeyId
    """Opaque; sorts by time of creation."""
    prefix: str = Field(examples=["fq_01k9x3zq7rh2v8m4t6w0ybe5k1"])
    """First characters of the key."""
    name: str = Field(examples=["laptop"])
    """Purpose of the key."""
    owner: UserName
    """Owner of everything created with the key."""
    scope: Scope
    """Permissions of the key."""
    code: bool = False
    """True if the key may also send code bundles."""
    created_at: datetime
    """Time of creation (UTC)."""
    expires_at: datetime | None
    """Expiry time (UTC); null: never."""
    revoked_at: datetime | None = Field(examples=[None])
    """Time of revocation (UTC)."""
    last_used_at: datetime | None
    """Time of last use (UTC), to the minute."""
    max_waiting_runs: int | None = Field(examples=[1000])
    """Maximum number of queued or paused runs; null: no limit."""
    max_running_runs: int | None = Field(examples=[8])
    """Maximum number of concurrent runs, further runs stay queued; null: no limit."""
    max_stored_bytes: int | None = Field(examples=[10000000000])
    """Maximum size of uploaded data sets, code bundles and weights in bytes; null: no limit."""
    max_compute_seconds: float | None = Field(examples=[None])
    """Maximum total compute time of its runs in seconds; null: no limit."""


class NewKey(Key):
    """A newly created API key, with its secret."""

    key: str = Field(examples=["fq_01k9x3zq7rh2v8m4t6w0ybe5k1_<secret>"])
    """The key itself. It is not shown again."""


class KeyUsage(Schema):
    """Use of a key's quotas."""

    waiting_runs: int
    """Number of queued or paused runs."""
    running_runs: int
    """Number of running runs."""
    stored_bytes: int
    """Size of uploaded data sets, code bundles and weights in bytes."""
    compute_seconds: float
    """Compute time of all rounds in seconds, including deleted runs."""


class KeyStanding(Schema):
    """A key and its use of quotas."""

    key: Key
    """The key."""
    usage: KeyUsage
    """Use of its quotas."""


class AuditEntry(Schema):
    """A change, or an attempt at one."""

    id: str = Field(examples=["aud_01k9x3zq7rh2v8m4t6w0ybe5a7"])
    """Opaque; sorts by time."""
    at: datetime
    """Time of the action (UTC)."""
    owner: UserName
    """Owner of the key."""
    key_id: KeyId
    """Key id; empty for direct writes to the database."""
    address: str = Field(examples=["10.0.0.7"])
    """Network address of the client, or of its proxy."""
    action: str = Field(examples=["POST /v1/experiments"])
    """Method and path of the operation, or a command."""
    target: ExperimentId
    """Id of the created, changed or deleted resource; empty if there is none."""
    status: int = Field(examples=[201])
    """HTTP status of the response."""
    request_id: str = Field(examples=["8f6e1c0a4b3d4f6e9a7b5c3d1e2f4a6b"])
    """The request's `X-Request-Id`, which also identifies it in the log."""
