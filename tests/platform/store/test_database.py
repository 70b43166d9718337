"""Guarantees of `Database` on both databases."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.exc import DBAPIError

from fedcore.errors import SettingsError
from fedcore.platform.store import UNAVAILABLE, Database, open_database, workers
from fedcore.platform.store.clock import sql_now
from fedcore.platform.store.database import parse_database_url
from tests.support.polling import eventually


def report(database: Database, worker_id: str) -> None:
    with database.transaction() as session:
        workers.seen(session, worker_id, host="here", pid=1, queues=["default"], device="cpu", run_id=None)


def present(database: Database) -> list[str]:
    with database.reading() as session:
        return [worker.id for worker in workers.alive(session, 60)]


def alone(database: Database) -> bool:
    """True if nobody else is connected to this PostgreSQL database."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with database.reading() as session:
        return not session.scalar(text(others))


def test_a_block_that_ends_well_is_committed(database: Database) -> None:
    report(database, "w1")
    assert present(database) == ["w1"]


def test_a_block_that_an_error_leaves_is_rolled_back(database: Database) -> None:
    with suppress(ConnectionError), database.transaction() as session:
        workers.seen(session, "w1", host="here", pid=1, queues=["default"], device="cpu", run_id=None)
        raise ConnectionError
    assert present(database) == []


def test_readers_see_one_snapshot(database: Database) -> None:
    with database.reading() as session:
        assert not workers.alive(session, 60)
        report(database, "w1")
        assert not workers.alive(session, 60)
    assert present(database) == ["w1"]


def test_readers_cannot_write(database: Database) -> None:
    with database.reading() as session, pytest.raises(DBAPIError, match=r"read-?only"):
        workers.seen(session, "w1", host="here", pid=1, queues=["default"], device="cpu", run_id=None)


def test_a_database_can_be_used_again_after_it_was_closed(database: Database) -> None:
    database.close()
    report(database, "w1")
    assert present(database) == ["w1"]


def test_the_clock_goes_on_within_a_transaction_and_knows_its_zone(database: Database) -> None:
    with database.transaction() as session:
        first = session.scalars(select(sql_now())).one()
        later = session.scalars(select(sql_now(2.5))).one()
    assert first.utcoffset() is not None
    assert 2.4 < (later - first).total_seconds() < 5


def test_sqlite_waits_for_another_that_writes_to_a_database_which_is_not_prepared_yet(tmp_path: Path) -> None:
    path = tmp_path / "fedq.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(1) as beside:
        for statement in ("CREATE TABLE t (x)", "BEGIN IMMEDIATE"):
            other.execute(statement)
        opened = beside.submit(_journal_of, f"sqlite:///{path}")
        with suppress(TimeoutError):
            opened.result(0.3)
        assert not opened.done(), opened.result()
        other.execute("COMMIT")
        assert opened.result() == "wal"


def _journal_of(url: str) -> str | None:
    with closing(open_database(url)) as database, database.reading() as session:
        return session.scalar(text("PRAGMA journal_mode"))


def test_sqlite_waits_for_others_and_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'fedq.db'}")
    with database.transaction() as session:
        found = {
            name: session.scalar(text(f"PRAGMA {name}"))
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    database.close()
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}


def test_postgresql_waits_neither_for_locks_nor_for_frozen_processes_without_end(postgresql_url: str) -> None:
    database = open_database(postgresql_url)
    with database.transaction() as session:
        found = {
            name: session.scalar(text(f"SHOW {name}"))
            for name in ("lock_timeout", "idle_in_transaction_session_timeout", "timezone")
        }
    database.close()
    assert found == {"lock_timeout": "10s", "idle_in_transaction_session_timeout": "1min", "timezone": "UTC"}


def test_transaction_that_waited_for_a_lock_on_postgresql_sees_what_was_committed_meanwhile(
    postgresql_url: str,
) -> None:
    database = open_database(postgresql_url)
    name, stricter = (
        make_url(postgresql_url).database,
        "SET default_transaction_isolation = 'repeatable read'",
    )
    with database.transaction() as session:
        session.execute(text(f'ALTER DATABASE "{name}" {stricter}'))
    database.close()
    with database.transaction() as session:
        assert session.scalar(text("SHOW transaction_isolation")) == "read committed"
    database.close()


def test_a_connection_that_the_server_has_closed_is_replaced(postgresql_url: str) -> None:
    database, other = open_database(postgresql_url), open_database(postgresql_url)
    report(database, "w1")
    with other.transaction() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )
        )
    eventually(lambda: alone(other))
    report(database, "w2")
    assert present(database) == ["w1", "w2"]
    for one in (database, other):
        one.close()


def test_a_process_that_froze_within_a_transaction_finds_the_database_away(postgresql_url: str) -> None:
    database, other = open_database(postgresql_url), open_database(postgresql_url)

    def given_up(pid: int) -> bool:
        with other.reading() as session:
            return not session.scalar(
                text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}
            )

    with pytest.raises(UNAVAILABLE), database.transaction() as session:  # noqa: PT012 - the commit raises too
        pid = session.scalars(text("SELECT pg_backend_pid()")).one()
        session.execute(text("SET idle_in_transaction_session_timeout = 20"))
        eventually(lambda: given_up(pid))
    for one in (database, other):
        one.close()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_any_usual_name_of_postgresql_means_the_same(scheme: str) -> None:
    assert parse_database_url(f"{scheme}://user@host/name").drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://user:secret@host/name", "must be sqlite or postgresql, not mysql"),
        ("host:secret", "is no URL; give sqlite:///path or postgresql://user@host/name"),
        ("postgresql://fedq@db/fedq?pooler=session", "pooler must be transaction, not session"),
    ],
)
def test_other_databases_are_refused_by_setting_without_their_password(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=rf"^FEDQ_DATABASE_URL: {words}$"):
        parse_database_url(url)


SAFEGUARDS = "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone"


@pytest.mark.parametrize("option", ["", "&pooler=transaction"])
def test_each_transaction_has_its_safeguards(postgresql_url: str, option: str) -> None:
    database = open_database(postgresql_url + option, idle_s=7, lock_timeout_s=3)
    for opened in (database.transaction, database.reading):
        with opened() as session:
            found = [session.scalar(text(f"SHOW {name}")) for name in SAFEGUARDS]
        assert found == ["3s", "7s", "UTC"]
    database.close()


def test_behind_a_pooler_a_connection_keeps_nothing_for_the_next_transaction(postgresql_url: str) -> None:
    database = open_database(f"{postgresql_url}&pooler=transaction", lock_timeout_s=3)
    for _ in range(10):  # a driver prepares what it is given often
        assert present(database) == []
    with database.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM pg_prepared_statements")) == 0
        session.connection().exec_driver_sql("ROLLBACK")
        assert session.scalar(text("SHOW lock_timeout")) != "3s"
    database.close()
