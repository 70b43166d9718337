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
from sqlalchemy import Column, Connection, Integer, insert, inspect, text
from sqlalchemy.exc import OperationalError

from fedcore.platform.access import LOCAL, Scope
from fedcore.platform.store import Database, datasets, keys, open_database, progress, sharing, upgrade
from fedcore.platform.store.database import canonical, engine
from fedcore.platform.store.migration import migrating
from fedcore.platform.store.sharing import Access
from fedcore.platform.store.tables import GrantRecord
from fedcore.statistics.poor_runs import WarningKind
from tests.platform.store.acts import claim, commit, finish, report, submit, the_run
from tests.platform.store.test_blocks import ROUNDS, everything, history, packed, played, stored_rows
from tests.support.polling import eventually
from tests.support.postgresql import fresh_database

__all__ = [
    "test_downgrade_leaves_no_trace",
    "test_model_definitions_match_ddl",
    "test_single_head_revision",
    "test_up_down_consistency",
    "test_upgrade",
]

# Compares the tables after each step up and down, of which there are many.
test_downgrade_leaves_no_trace = pytest.mark.slow(test_downgrade_leaves_no_trace)

OLD_DATASET = """
INSERT INTO dataset (id, name, owner, digest, content, client_sizes, size_bytes, created_at)
VALUES ('set_0', 'old', 'local', 'd', '{}', '{}', 1, '2026-11-01 00:00:00.000')
"""


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
    made = engine(canonical(url))
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
    assert the_run(database, experiment).done == 2


def test_several_processes_may_upgrade_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as starting:
        list(starting.map(upgrade, [empty_url] * 4))
    assert {"experiment", "run", "round", "alembic_version"} <= tables(empty_url)


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
        session.execute(text("SELECT count(*) FROM round"))
        with pytest.raises(OperationalError, match="lock timeout"):
            _rate(url)
    made = engine(canonical(url))
    assert "stars" not in {
        column["name"] for table in ("run", "round") for column in inspect(made).get_columns(table)
    }
    made.dispose()


def _rate(url: str) -> None:
    with migrating(url, LOCK_TIMEOUT_S) as connection:
        for table in ("run", "round"):
            operations(connection).add_column(table, Column("stars", Integer))


def test_a_revision_that_fails_leaves_the_database_as_it_was(empty_url: str) -> None:
    upgrade(empty_url)
    before = tables(empty_url)
    with suppress(ConnectionError), migrating(empty_url) as connection:
        operations(connection).drop_table("round")
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
    assert the_run(database, experiment).done == 2
    database.close()


def test_a_filled_database_can_be_taken_all_the_way_down_and_up_again(
    alembic_runner: MigrationContext, database_at: Database
) -> None:
    alembic_runner.migrate_up_to("heads")
    submit(database_at)
    commit(database_at, claim(database_at), 2)
    alembic_runner.migrate_down_to("base")
    alembic_runner.migrate_up_to("heads")
    assert the_run(database_at, submit(database_at)).done == 0


def test_what_was_made_before_there_were_keys_belongs_to_local_and_can_be_reached(
    alembic_runner: MigrationContext, database_at: Database
) -> None:
    alembic_runner.migrate_up_to("0003")
    with database_at.transaction() as session:
        session.execute(text(OLD_DATASET))
    alembic_runner.migrate_up_to("heads")
    with database_at.transaction() as session:
        _, token = keys.create(session, owner=LOCAL, scope=Scope.READ)
    with database_at.reading() as session:
        owner = keys.verify(session, token)[0].owner
        assert [found.id for found in datasets.page(session, owner).items] == ["set_0"]
    alembic_runner.migrate_down_to("0003")
    with database_at.reading() as session:
        assert session.scalars(text("SELECT owner FROM dataset")).all() == [LOCAL]


def test_shared_experiments_stay_shared(alembic_runner: MigrationContext, database_at: Database) -> None:
    alembic_runner.migrate_up_to("heads")
    experiment = submit(database_at)
    with database_at.transaction() as session:
        grants = [(experiment.id, "ben", False), (experiment.id, "eve", True), ("set_0", "ben", False)]
        for id, name, may_change in grants:
            session.execute(insert(GrantRecord).values(resource_id=id, grantee=name, may_change=may_change))
    alembic_runner.migrate_down_to("0031")
    alembic_runner.migrate_up_to("heads")
    with database_at.reading() as session:
        assert sharing.shares(session, experiment.id) == {"ben": Access.READ, "eve": Access.WRITE}
        assert sharing.shares(session, "set_0") == {}


def test_warnings_of_runs_outlast_their_column(
    alembic_runner: MigrationContext, database_at: Database
) -> None:
    alembic_runner.migrate_up_to("heads")
    held = played(database_at, [report(round, train_loss=float(round)) for round in (1, 2)], rounds=2)
    finish(database_at, held)
    with database_at.reading() as session:
        before = progress.progress(session, held.experiment_id).warnings
    alembic_runner.migrate_down_to("0032")
    alembic_runner.migrate_up_to("heads")
    with database_at.reading() as session:
        assert progress.progress(session, held.experiment_id).warnings == before
    assert before[WarningKind.WORSE] == 1


def test_a_downgrade_writes_packed_rows_back(alembic_runner: MigrationContext, database_at: Database) -> None:
    alembic_runner.migrate_up_to("heads")
    held = played(database_at, history())
    finish(database_at, held)
    before = everything(database_at, held)
    packed(database_at)
    alembic_runner.migrate_down_to("0025")
    alembic_runner.migrate_up_to("heads")
    assert stored_rows(database_at) == ROUNDS
    assert everything(database_at, held) == before
