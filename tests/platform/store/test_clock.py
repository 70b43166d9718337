"""Moments are the same on both databases: in UTC, to the millisecond, in order."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import literal, select
from sqlalchemy.exc import StatementError

from fedcore.platform.store import Database
from fedcore.platform.store.clock import Timestamp, sql_now


def kept(database: Database, moment: datetime) -> datetime:
    """`moment` as it comes back from the database."""
    with database.reading() as session:
        return session.scalars(select(literal(moment, Timestamp()))).one()


def test_a_moment_comes_back_in_utc(database: Database) -> None:
    moment = datetime(2026, 1, 1, 1, 30, 0, 5_000, tzinfo=timezone(timedelta(hours=2)))
    found = kept(database, moment)
    assert (found, found.tzinfo) == (datetime(2025, 12, 31, 23, 30, 0, 5_000, tzinfo=UTC), UTC)


def test_a_moment_without_a_time_zone_is_refused(database: Database) -> None:
    with pytest.raises(StatementError, match="2026-01-01 00:00:00 has no time zone"):
        kept(database, datetime(2026, 1, 1))  # noqa: DTZ001 - the point of the test


@pytest.mark.parametrize("offset_s", [0.001, 1.0, 3_600.5, 1e6])
def test_moments_are_ordered_by_the_database_as_they_follow(database: Database, offset_s: float) -> None:
    with database.reading() as session:
        assert session.scalar(select((sql_now(-offset_s) < sql_now()) & (sql_now() < sql_now(offset_s))))


def test_the_database_agrees_with_this_machine_on_the_time(database: Database) -> None:
    with database.reading() as session:
        found = session.scalars(select(sql_now())).one()
    assert abs(found - datetime.now(UTC)) < timedelta(seconds=5)
