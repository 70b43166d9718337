"""Bringing a database to the present schema; several processes may try at once."""

from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from fedcore.store.database import canonical, engine

_ADVISORY_LOCK = 4_632_541
"""Any number, the same in every FedQ process."""


def upgrade(url: str) -> None:
    """Bring the database at `url` to the newest revision; does nothing when it is there."""
    made = engine(canonical(url))
    try:
        # On SQLite the transaction itself is the lock, since it begins immediate.
        with made.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            with as_file(files("migrations")) as folder:
                command.upgrade(configuration(str(folder), connection), "head")
    finally:
        made.dispose()


def configuration(folder: str, connection: Connection) -> Config:
    """Alembic's configuration for the revisions in `folder`, run on `connection`."""
    config = Config()
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
