"""Connections and transactions, the same for SQLite and PostgreSQL."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import ORMExecuteState, Session

from fedcore.errors import SettingsError
from fedcore.platform.file_systems import refuse_network_file_system

LOCK_TIMEOUT_S = 10.0
"""Longest wait for a lock of another transaction."""
IDLE_S = 60.0
"""PostgreSQL ends a transaction whose process has been silent for this long, and frees its locks.
"""
POOLED = 8
"""Connections of an engine, at most: opening further ones for each request would cost more than the
request.
"""
POOLER = "pooler"
"""Option in the URL of a database behind a pooler of transactions."""
UNAVAILABLE = (InterfaceError, InternalError, OperationalError, PoolTimeoutError)
"""Errors while the database is away, keeps a lock for too long, or has given up a frozen process:
the same transaction may work later.
"""


def driver_error(error: Exception) -> BaseException:
    """Return the driver's error behind one of `UNAVAILABLE`, without the statement; itself if none is."""
    return getattr(error, "orig", None) or error


class _Session(Session):
    """Queries read what is, not what the session remembers; updates go to the database alone."""


@event.listens_for(_Session, "do_orm_execute")
def _forget(statement: ORMExecuteState) -> None:
    # `Session(execution_options=...)` says the same, from SQLAlchemy 2.1 on.
    statement.update_execution_options(populate_existing=True, synchronize_session=False)


class Database:
    """A database by URL. It connects on first use, so make that use after a fork, not before; SQLite on
    a network file system then raises SettingsError.
    """

    def __init__(self, url: str, idle_s: float = IDLE_S, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.url, self._idle_s, self._lock_timeout_s = parse_database_url(url), idle_s, lock_timeout_s

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that may write.

        Commits at the end of the block, rolls back when an error leaves it.
        """
        with self._session(self._engine) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one snapshot and cannot write."""
        with self._session(self._snapshots) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close its idle connections; it may be used again."""
        self._engine.dispose()

    def _session(self, engine: Engine) -> Session:
        return _Session(engine, expire_on_commit=False, autoflush=False)

    @cached_property
    def _engine(self) -> Engine:
        return make_engine(self.url, self._idle_s, self._lock_timeout_s)

    @cached_property
    def _snapshots(self) -> Engine:
        if self.url.get_backend_name() == "sqlite":
            return self._engine.execution_options(sqlite_readonly=True)
        return self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def open_database(url: str, idle_s: float = IDLE_S, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Database:
    """The database at `url`: `sqlite:///path`, `postgresql://...`, or `postgresql://...?pooler=transaction`
    behind PgBouncer and the like, which give each transaction another connection.

    A transaction waits for a lock for at most `lock_timeout_s` seconds. PostgreSQL ends transactions
    that are silent for `idle_s` seconds.
    """
    return Database(url, idle_s, lock_timeout_s)


def parse_database_url(url: str) -> URL:
    """`url` with the driver FedQ uses for its database.

    Raises SettingsError for another one.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise SettingsError(
            "FEDQ_DATABASE_URL: is no URL; give sqlite:///path or postgresql://user@host/name"
        ) from error
    match parsed.get_backend_name():
        case "sqlite":
            return parsed
        case "postgresql" | "postgres":
            if parsed.query.get(POOLER, "transaction") != "transaction":
                raise SettingsError(
                    f"FEDQ_DATABASE_URL: {POOLER} must be transaction, not {parsed.query[POOLER]}"
                )
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise SettingsError(f"FEDQ_DATABASE_URL: must be sqlite or postgresql, not {other}")


def make_engine(url: URL, idle_s: float = IDLE_S, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Engine:
    """An engine with the safeguards of its database."""
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, lock_timeout_s)
    return _postgresql(url, idle_s, lock_timeout_s)


# Parameters are hidden: the text of an error, which is logged, says which statement failed and not
# what was to be written.
def _postgresql(url: URL, idle_s: float, lock_timeout_s: float) -> Engine:
    settings = {
        "lock_timeout": str(round(1_000 * lock_timeout_s)),
        "idle_in_transaction_session_timeout": str(round(1_000 * idle_s)),
        "timezone": "UTC",
    }
    arguments: dict[str, Any] = {
        "connect_timeout": 5,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,  # keepalives are not sent while an answer is awaited
    }
    pooled = POOLER in url.query
    if pooled:
        # The server's connection is another one in the next transaction.
        arguments["prepare_threshold"] = None
    else:
        arguments["options"] = " ".join(f"-c {name}={value}" for name, value in settings.items())
    # Set explicitly: a transaction that waited for a lock must then see what was committed
    # meanwhile, regardless of the server's default.
    made = create_engine(
        url.difference_update_query([POOLER]),
        hide_parameters=True,
        isolation_level="READ COMMITTED",
        connect_args=arguments,
        pool_size=POOLED,
        max_overflow=0,
        pool_pre_ping=True,
    )
    if pooled:
        calls = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
        event.listen(made, "begin", lambda connection: connection.exec_driver_sql(f"SELECT {calls}"))
    return made


def _sqlite(url: URL, lock_timeout_s: float) -> Engine:
    if url.database and url.database != ":memory:":
        refuse_network_file_system(Path(url.database))
    made = create_engine(url, hide_parameters=True, connect_args={"timeout": lock_timeout_s})
    event.listen(made, "do_connect", partial(_require_folder, url))
    event.listen(made, "connect", partial(_prepare, lock_timeout_s))
    event.listen(made, "begin", _begin)
    return made


def _require_folder(url: URL, *_: Any) -> None:
    # SQLite would not say which file it is unable to open.
    if url.database and not (folder := Path(url.database).parent).is_dir():
        raise sqlite3.OperationalError(f"there is no folder {folder}; set FEDQ_HOME or FEDQ_DATABASE_URL")


def _prepare(lock_timeout_s: float, connection: DBAPIConnection, _record: Any) -> None:
    # The driver would begin late and deferred; `_begin` does it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    _write_ahead(cursor, time.monotonic() + lock_timeout_s)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _write_ahead(cursor: DBAPICursor, until: float) -> None:
    """Have SQLite write ahead. While another process opens the same new database, it refuses this at
    once, whatever its timeout.
    """
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def _begin(connection: Connection) -> None:
    reading = connection.get_execution_options().get("sqlite_readonly", False)
    connection.exec_driver_sql(f"PRAGMA query_only = {reading:d}")
    # A deferred transaction that turns to writing fails at once when another has written; an
    # immediate one waits its turn.
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
