"""Bringing a database to the present schema; several processes may try at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session

from fedcore.platform.store import arms
from fedcore.platform.store.database import LOCK_TIMEOUT_S, canonical, engine

if TYPE_CHECKING:
    from alembic.config import Config

_ADVISORY_LOCK = 4_632_541
"""Any number, the same in every FedQ process."""


def upgrade(url: str, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Bring the database at `url` to the newest revision; does nothing when it is there."""
    from alembic import command

    with migrating(url, lock_timeout_s) as connection, as_file(files("migrations")) as folder:
        config = configuration(folder)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        with Session(connection) as session:
            arms.fill(session)
            session.flush()


@contextmanager
def migrating(url: str, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[Connection]:
    """A connection in a transaction that no other process migrates beside.

    On PostgreSQL it waits until the others are done. Its own statements wait for a table no longer
    than `lock_timeout_s` seconds, as those of any transaction, because the requests of the service
    wait behind them.
    """
    made = engine(canonical(url), lock_timeout_s=lock_timeout_s)
    if made.dialect.name == "sqlite":
        event.listen(made, "connect", _let_tables_be_replaced)
    try:
        # On SQLite the transaction itself is the lock, since it begins immediate.
        with made.begin() as connection:
            if connection.dialect.name == "postgresql":
                # The timeout holds for advisory locks too.
                connection.execute(text("SET LOCAL lock_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
                connection.execute(text("SET LOCAL lock_timeout TO DEFAULT"))
            yield connection
    finally:
        made.dispose()


def configuration(folder: Path) -> "Config":
    """Alembic's configuration for the revisions in `folder`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _let_tables_be_replaced(connection: DBAPIConnection, _record: Any) -> None:
    # To change a table SQLite copies it and drops the old one, and with that, were keys enforced,
    # all rows that refer to it.
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = OFF")
    cursor.close()
