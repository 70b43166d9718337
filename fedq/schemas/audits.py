"""The audit log."""

from datetime import datetime

from fedq.schemas.base import Schema


class AuditEntry(Schema):
    """A change, or an attempt at one."""

    id: str
    """Opaque; sorts by time."""
    at: datetime
    """Time of the action (UTC)."""
    owner: str
    """Owner of the key."""
    key_id: str
    """Key id; empty for direct writes to the database."""
    address: str
    """Network address of the client, or of its proxy."""
    action: str
    """Method and path of the operation, or a command."""
    target: str
    """Id of the created, changed or deleted resource; empty if there is none."""
    status: int
    """HTTP status of the response."""
    request_id: str
    """The request's `X-Request-Id`, which also identifies it in the log."""


class AuditPage(Schema):
    """A page of the audit log, newest first."""

    items: list[AuditEntry]
    """The entries."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""
