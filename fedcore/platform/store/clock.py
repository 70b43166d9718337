"""The database's clock: the only one for leases, ages and orders."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Float, String, TypeDecorator, literal, select
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine


class Timestamp(TypeDecorator[datetime]):
    """A moment in UTC: `timestamptz` on PostgreSQL.

    On SQLite text of one width, so that it sorts as it should.
    """

    impl = TIMESTAMP
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type of this database."""
        return dialect.type_descriptor(String(23) if dialect.name == "sqlite" else TIMESTAMP(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Convert a moment for the database; a moment without a time zone is refused."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        value = value.astimezone(UTC)
        return (
            value.replace(tzinfo=None).isoformat(" ", "milliseconds") if dialect.name == "sqlite" else value
        )

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Convert a moment from the database."""
        if value is None:
            return None
        return (
            datetime.fromisoformat(value).replace(tzinfo=UTC)
            if dialect.name == "sqlite"
            else value.astimezone(UTC)
        )


class _Now(FunctionElement[datetime]):
    inherit_cache = True
    type = Timestamp()


@compiles(_Now, "postgresql")
def _now_postgresql(element: _Now, compiler: SQLCompiler, **options: Any) -> str:
    # Unlike now(), clock_timestamp() goes on within a transaction: a lease must not be dated back
    # to its beginning.
    return f"(clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **options)}))"


@compiles(_Now, "sqlite")
def _now_sqlite(element: _Now, compiler: SQLCompiler, **options: Any) -> str:
    return (
        "strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds',"
        f" {compiler.process(element.clauses, **options)}))"
    )


def sql_now(offset_s: float = 0.0) -> ColumnElement[datetime]:
    """The present moment, or the one `offset_s` seconds after it, as an SQL expression."""
    return _Now(literal(offset_s, Float))


_NOW = select(sql_now())


def database_time(session: Session) -> datetime:
    """Read the clock of the database, for ids and for values that are dated."""
    return session.scalars(_NOW).one()
