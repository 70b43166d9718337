"""Bringing a database to the present schema; several processes may try at once. And what processes say that
find another schema.
"""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.engine.interfaces import DBAPIConnection

from fedcore.errors import NewerSchemaError, SchemaError
from fedcore.platform.store.database import (
    LOCK_TIMEOUT_S,
    UNAVAILABLE,
    make_engine,
    open_database,
    parse_database_url,
)

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

_ADVISORY_LOCK = 4_632_541
"""Any number, the same in every FedQ process."""


def upgrade(url: str, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Bring the database at `url` to the newest revision; does nothing when it is there.

    Raises NewerSchemaError.
    """
    from alembic import command

    with migrating(url, lock_timeout_s) as connection, as_file(files("migrations")) as folder:
        with suppress(_OlderSchemaError):
            _compare(connection)
        config = configuration(folder)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def check_schema(url: str) -> None:
    """Raise SchemaError unless the database at `url` has the schema of this version."""
    with closing(open_database(url)) as database, database.reading() as session:
        _compare(session.connection())


def require_schema(url: str) -> None:
    """`check_schema` for a process of the service that starts.

    Raises SchemaError for an older database. On a newer one it logs the message: processes of the
    version before go on until they are replaced. A database that is away is waited for later.
    """
    try:
        with suppress(*UNAVAILABLE):
            check_schema(url)
    except NewerSchemaError as error:
        log.warning("%s", error)


class _OlderSchemaError(SchemaError):
    pass


def _compare(connection: Connection) -> None:
    found = None
    if inspect(connection).has_table("alembic_version"):
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    where = f"the database {connection.engine.url.render_as_string()}"
    if found is None:
        raise _OlderSchemaError(f"{where} has no tables of FedQ yet: run `fedq migrate`")
    if found != (newest := refuse_unknown(found, where)):
        raise _OlderSchemaError(
            f"{where} is of an older FedQ (schema {found}; this one needs {newest}): run `fedq migrate`"
        )


def refuse_unknown(found: str, where: str) -> str:
    """Return the schema of this version; raises SchemaError if it does not know the one `found`."""
    # By their names: to load Alembic would take 15 MB.
    names = [file.name for file in (files("migrations") / "versions").iterdir()]
    known = sorted(name.partition("_")[0] for name in names if name[0].isdecimal())
    if found < known[0]:
        raise SchemaError(
            f"{where} is of a FedQ before 0.1.0 (schema {found}), which no version takes over: start with an"
            " empty database, and `fedq import` what that FedQ has exported"
        )
    if found not in known:
        raise NewerSchemaError(
            f"{where} is of a newer FedQ (schema {found}; this one knows {known[-1]}): install that version,"
            " or restore a backup of before its migration"
        )
    return known[-1]


@contextmanager
def migrating(url: str, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[Connection]:
    """A connection in a transaction that no other process migrates beside.

    On PostgreSQL it waits until the others are done. Its own statements wait for a table no longer
    than `lock_timeout_s` seconds, as in any transaction, because the requests of the service wait
    behind them.
    """
    made = make_engine(parse_database_url(url), lock_timeout_s=lock_timeout_s)
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
