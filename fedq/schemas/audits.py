"""The audit log."""

from datetime import datetime

from fedq.schemas.base import Schema


class AuditEntry(Schema):
    """A change, or an attempt at one."""

    id: str
    """Opaque; sorts by time."""
    at: datetime
    """When (UTC)."""
    owner: str
    """Who: the owner of the key."""
    key_id: str
    """With which key; empty for whoever wrote to the database directly."""
    address: str
    """From where: the address of the client, or of the proxy before it."""
    action: str
    """What: method and path, as this document has them, or a command."""
    target: str
    """The id of what was made, changed or deleted; empty where nothing came of it."""
    status: int
    """How it was answered: an HTTP status."""
    request_id: str
    """Under which id the log has the request: its `X-Request-Id`."""


class AuditPage(Schema):
    """A page of the audit log, newest first."""

    items: list[AuditEntry]
    """The entries."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""
