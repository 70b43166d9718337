"""Clocks of databases that can be set, without touching that of the machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, event, text

from fedcore.platform.store import Database

SetClock = Callable[[float], None]
"""Sets the clock to so many seconds after that of the machine."""
_FORMAT = "%Y-%m-%d %H:%M:%f"
_SHIFTED = (
    "CREATE SCHEMA shifted",
    "CREATE TABLE shifted.clock (seconds double precision)",
    "INSERT INTO shifted.clock VALUES (0)",
    """CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM shifted.clock'""",
)


@contextmanager
def settable_clock(database: Database) -> Iterator[SetClock]:
    """PostgreSQL: the clock that all sessions have from now on. SQLite: that of this process."""
    if database.url.get_backend_name() == "sqlite":
        with shifted_sqlite() as set_clock:
            database.close()
            yield set_clock
            database.close()
    else:
        with database.transaction() as session:
            for statement in _SHIFTED:
                session.execute(text(statement))
            # Functions of pg_catalog come first where it is not named.
            path = "SET search_path = shifted, public, pg_catalog"
            session.execute(text(f'ALTER DATABASE "{database.url.database}" {path}'))
        database.close()

        def set_clock(seconds: float) -> None:
            with database.transaction() as session:
                session.execute(text("UPDATE shifted.clock SET seconds = :seconds"), {"seconds": seconds})

        yield set_clock


@contextmanager
def shifted_sqlite() -> Iterator[SetClock]:
    """The clock of connections to SQLite that this process opens inside the block."""
    shift_s = 0.0

    def strftime(form: str, start: str, *modifiers: str) -> str:
        assert (form, start) == (_FORMAT, "now")
        offset_s = sum(float(modifier.removesuffix(" seconds")) for modifier in modifiers)
        moment = datetime.now(UTC) + timedelta(seconds=shift_s + offset_s)
        return moment.replace(tzinfo=None).isoformat(" ", "milliseconds")

    def connected(connection: Any, _: object) -> None:
        if hasattr(connection, "create_function"):
            connection.create_function("strftime", -1, strftime)

    def set_clock(seconds: float) -> None:
        nonlocal shift_s
        shift_s = seconds

    event.listen(Engine, "connect", connected)
    try:
        yield set_clock
    finally:
        event.remove(Engine, "connect", connected)
