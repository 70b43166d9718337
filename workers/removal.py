"""Removal of the files of deleted rows, on a thread of the reconciler's process.

A storage may take minutes for an answer, for which runs that lost their workers must not wait.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from fedcore.errors import StorageError
from fedcore.platform.storage import Storage
from fedcore.platform.store import UNAVAILABLE, Database, removals

PERIOD_S = 1.0
AT_ONCE = 100
LEASE_S = 1_200.0
"""Until taken paths are due again; a storage that hangs is given up after
`fedcore.platform.storage.remote.TIMEOUT_S`.
"""
END_S = 5.0
"""For the removal at hand, when the process is asked to end; then it is left to its lease."""

log = structlog.stdlib.get_logger(__name__)


@contextmanager
def removing(database: Database, storage: Storage) -> Iterator[None]:
    """Remove what is due, every second, as long as the block lasts."""
    ended = threading.Event()
    thread = threading.Thread(target=_run, args=(database, storage, ended), name="removal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_S)


def remove_due(database: Database, storage: Storage, ended: threading.Event) -> None:
    """Remove the files that are due, until there are none, or `ended`."""
    while not ended.is_set():
        with database.reading() as session:
            if not removals.any_due(session):
                return
        with database.transaction() as session:
            taken, began = removals.take(session, AT_ONCE, LEASE_S), time.monotonic()
        removed, failed = list[str](), dict[str, int]()
        for path, failures in taken:
            if ended.is_set() or time.monotonic() - began > LEASE_S / 2:
                break
            try:
                _remove(storage, path)
                removed.append(path)
            except StorageError as error:
                failed[path] = failures
                log.warning("files stay for now", path=path, failures=failures + 1, error=str(error))
        with database.transaction() as session:
            removals.conclude(session, removed, failed)


def _remove(storage: Storage, path: str) -> None:
    if path.endswith("/"):
        storage.delete_prefix(path[:-1])
    else:
        storage.delete(path)


def _run(database: Database, storage: Storage, ended: threading.Event) -> None:
    while not ended.wait(PERIOD_S):
        try:
            remove_due(database, storage, ended)
        except UNAVAILABLE as error:
            log.warning("the database is away: %s", error)
        except Exception:
            # Whatever it is, what is due stays due.
            log.exception("no files were removed")
