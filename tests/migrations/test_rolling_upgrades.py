"""The database is migrated first: until they are replaced, processes of the version before work on
with the newer tables.
"""

import json
from collections.abc import Iterator

import pytest
from pytest_alembic import MigrationContext
from sqlalchemy import Engine, MetaData, Table, inspect, select, update

from fedcore.platform.store import Database, Status, curves, open_database
from fedcore.platform.store.leases import Claim
from tests.builders.claims import claim, commit, finish, lose
from tests.builders.experiments import run_of, submit
from tests.builders.transactions import read

BEFORE = "0100"
"""The oldest revision from which upgrades are made while the service runs."""


@pytest.fixture
def database_at(empty_url: str) -> Iterator[Database]:
    opened = open_database(empty_url)
    yield opened
    opened.close()


def test_process_that_knows_the_older_tables_can_write_to_the_newer(
    alembic_runner: MigrationContext, alembic_engine: Engine
) -> None:
    alembic_runner.migrate_up_to(BEFORE)
    older = {table: set(columns) for table, columns in columns_of(alembic_engine).items()}
    alembic_runner.migrate_up_to("heads")
    newer = columns_of(alembic_engine)
    for table, known in older.items():
        assert known <= newer[table].keys(), f"{table} has lost a column"
        demanded = {name for name, needed in newer[table].items() if needed and name not in known}
        assert not demanded, (
            f"{table} demands what the version before does not write: give the columns a server_default"
        )


def test_a_run_under_way_goes_on_through_an_upgrade(
    alembic_runner: MigrationContext, alembic_engine: Engine, database_at: Database
) -> None:
    alembic_runner.migrate_up_to("heads")
    experiment = submit(database_at)
    held = commit(database_at, claim(database_at), 1)
    alembic_runner.migrate_down_to(BEFORE)
    older = MetaData()
    older.reflect(alembic_engine, only=["run", "block"])
    commit_as_before(alembic_engine, older, held, 2)
    alembic_runner.migrate_up_to("heads")
    commit_as_before(alembic_engine, older, held, 3)
    assert lose(database_at) == [held.run_id]
    newer = claim(database_at)
    assert (newer.fence, newer.done) == (held.fence + 1, 3)
    commit_as_before(alembic_engine, older, held, 4, refused=True)
    finish(database_at, newer)
    assert run_of(database_at, experiment).status is Status.SUCCEEDED
    assert [row.round for row in read(database_at, curves.after, held.run_id)] == [1, 2, 3, 4]


def columns_of(engine: Engine) -> dict[str, dict[str, bool]]:
    """The columns of every table: whether a row must be given a value for it."""
    found = inspect(engine)
    return {
        table: {
            column["name"]: not column["nullable"] and column["default"] is None
            for column in found.get_columns(table)
        }
        for table in found.get_table_names()
    }


def commit_as_before(
    engine: Engine, older: MetaData, held: Claim, done: int, *, refused: bool = False
) -> None:
    """Commit a round as a worker of the version before does, with the columns that it knows.

    Its lease is over then.
    """
    run, block = (Table(name, older) for name in ("run", "block"))
    own = (
        run.c.id == held.run_id,
        run.c.fence == held.fence,
        run.c.done == done - 1,
        run.c.status == Status.RUNNING,
    )
    with engine.begin() as connection:
        changed = connection.execute(
            update(run).where(*own).values(done=done, attempts=0, lease_until=run.c.queued_at)
        )
        assert changed.rowcount == (0 if refused else 1)
        if not refused:
            mine = block.c.run_id == held.run_id
            stored = connection.execute(select(block.c.rounds).where(mine)).scalar_one()
            rounds = json.loads(stored)
            for values in (rounds["committed_at"], *rounds["columns"].values(), *rounds["extra"].values()):
                values.append(values[0])
            connection.execute(update(block).where(mine).values(last=done, rounds=json.dumps(rounds)))
