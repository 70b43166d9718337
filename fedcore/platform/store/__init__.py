"""The store: tables and queries; the only part of FedQ that knows a database.

Every query is a function that takes a Session and never commits:
`with database.transaction() as session: ...` is the transaction. Rows come back as records that
outlive their session and are never written to.
"""

from sqlalchemy.orm import Session

from fedcore.platform.status import ENDED, RunRequest, Status, WorkerDirective
from fedcore.platform.store.database import UNAVAILABLE, Database, driver_error, open_database
from fedcore.platform.store.migration import check_schema, require_schema, upgrade

__all__ = [
    "ENDED",
    "UNAVAILABLE",
    "Database",
    "RunRequest",
    "Session",
    "Status",
    "WorkerDirective",
    "check_schema",
    "driver_error",
    "open_database",
    "require_schema",
    "upgrade",
]
