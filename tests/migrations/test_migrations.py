"""The revisions lead from nothing to the tables of the store and back, and leave the rows alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from uuid import uuid4

import pytest
from alembic.operations import Operations
from alembic.runtime import migration
from pytest_alembic import MigrationContext
from pytest_alembic.tests import (
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from pytest_alembic.tests.experimental import test_downgrade_leaves_no_trace
from sqlalchemy import Column, Connection, Integer, inspect, text
from sqlalchemy.exc import OperationalError

from fedcore.platform.store import Database, open_database, upgrade
from fedcore.platform.store.database import make_engine, parse_database_url
from fedcore.platform.store.migration import migrating
from tests.builders.claims import claim, commit
from tests.builders.experiments import run_of, submit
from tests.support.polling import eventually
from tests.support.postgresql import fresh_database

__all__ = [
    "test_downgrade_leaves_no_trace",
    "test_model_definitions_match_ddl",
    "test_single_head_revision",
    "test_up_down_consistency",
    "test_upgrade",
]

LOCK_TIMEOUT_S = 0.2
WAITED = """
SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
AND clock_timestamp() - query_start > make_interval(secs => :over_s)
"""


@pytest.fixture
def empty_postgresql_url(postgresql_server: str) -> Iterator[str]:
    with fresh_database(postgresql_server, f"fedq_{uuid4().hex}") as url:
        yield url


@pytest.fixture
def database_at(empty_url: str) -> Iterator[Database]:
    """The database that the test migrates itself."""
    opened = open_database(empty_url)
    yield opened
    opened.close()


def tables(url: str) -> set[str]:
    made = make_engine(parse_database_url(url))
    try:
        return set(inspect(made).get_table_names())
    finally:
        made.dispose()


def operations(connection: Connection) -> Operations:
    return Operations(migration.MigrationContext.configure(connection))


def test_upgrading_again_changes_nothing(database: Database, database_url: str) -> None:
    experiment = submit(database)
    commit(database, claim(database), 2)
    upgrade(database_url)
    assert run_of(database, experiment).done == 2


def test_processes_may_upgrade_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as starting:
        list(starting.map(upgrade, [empty_url] * 4))
    assert {"experiment", "run", "block", "alembic_version"} <= tables(empty_url)


def test_a_process_waits_for_one_that_migrates_beyond_the_timeout_of_locks(
    empty_postgresql_url: str,
) -> None:
    url = empty_postgresql_url
    with ThreadPoolExecutor(1) as beside, closing(open_database(url)) as watching:
        with migrating(url):
            second = beside.submit(upgrade, url, LOCK_TIMEOUT_S)

            def waits() -> bool:
                with watching.reading() as session:
                    waited = session.execute(text(WAITED), {"over_s": 3 * LOCK_TIMEOUT_S}).scalar()
                return waited is not None or second.done()

            eventually(waits)
            assert not second.done(), second.result()
        second.result()
    assert "alembic_version" in tables(url)


def test_a_statement_of_a_migration_waits_no_longer_for_a_table_than_any_other(
    empty_postgresql_url: str,
) -> None:
    url = empty_postgresql_url
    upgrade(url)
    with closing(open_database(url)) as database, database.reading() as session:
        session.execute(text("SELECT count(*) FROM block"))
        with pytest.raises(OperationalError, match="lock timeout"):
            _rate(url)
    made = make_engine(parse_database_url(url))
    assert "stars" not in {
        column["name"] for table in ("run", "block") for column in inspect(made).get_columns(table)
    }
    made.dispose()


def _rate(url: str) -> None:
    with migrating(url, LOCK_TIMEOUT_S) as connection:
        for table in ("run", "block"):
            operations(connection).add_column(table, Column("stars", Integer))


def test_a_revision_that_fails_leaves_the_database_as_it_was(empty_url: str) -> None:
    upgrade(empty_url)
    before = tables(empty_url)
    with suppress(ConnectionError), migrating(empty_url) as connection:
        operations(connection).drop_table("block")
        raise ConnectionError
    assert tables(empty_url) == before


def test_a_table_that_sqlite_must_replace_keeps_the_rows_that_refer_to_it(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    experiment = submit(database)
    commit(database, claim(database), 2)
    with (
        migrating(sqlite_url) as connection,
        operations(connection).batch_alter_table("experiment", recreate="always") as table,
    ):
        table.add_column(Column("stars", Integer))
    assert run_of(database, experiment).done == 2
    database.close()


def test_a_filled_database_can_be_taken_all_the_way_down_and_up_again(
    alembic_runner: MigrationContext, database_at: Database
) -> None:
    alembic_runner.migrate_up_to("heads")
    submit(database_at)
    commit(database_at, claim(database_at), 2)
    alembic_runner.migrate_down_to("base")
    alembic_runner.migrate_up_to("heads")
    assert run_of(database_at, submit(database_at)).done == 0
