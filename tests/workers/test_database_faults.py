"""A database that breaks off, is away, or is locked by others costs a run time, and nothing
else.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Event, Thread

import psycopg
import pytest
from sqlalchemy import URL

from fedcore.platform.store import Database, open_database
from tests.builders.specifications import merged
from tests.support.polling import eventually
from tests.workers.deployment import END_S, EXPERIMENT, Deployment, assert_undisturbed

SHORT = merged(EXPERIMENT, {"rounds": 40})
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
HELD_UP = "SELECT pid FROM pg_locks WHERE relation = 'block'::regclass AND NOT granted"


@contextmanager
def working(deployment: Deployment, database: Database | None = None) -> Iterator[None]:
    """A worker in this process that looks for work again and again, as if it were nudged."""
    ended = Event()

    def work() -> None:
        with deployment.with_settings(lease_seconds=60, slice_seconds=0.001).runner(
            database=database
        ) as runner:
            while not ended.wait(0.05):
                runner.work()

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def at_the_server(url: URL) -> psycopg.Connection:
    """A connection of an administrator to the database of the deployment, or to the one beside it."""
    return psycopg.connect(
        url.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True
    )


def test_connections_cut_in_the_middle_of_a_commit_lose_and_repeat_nothing(production: Deployment) -> None:
    deployment = production
    with working(deployment), closing(at_the_server(deployment.database.url)) as server:
        experiment = deployment.submit(SHORT, nudge=False)
        for done in (3, 6, 9):
            deployment.in_the_middle(experiment, done)
            with server.transaction():
                # Whoever commits a slice now has written to the run, and waits here to write its
                # rounds.
                server.execute("LOCK TABLE block IN SHARE MODE")
                (pid,) = eventually(lambda: server.execute(HELD_UP).fetchone(), timeout_s=END_S)
                server.execute("SELECT pg_terminate_backend(%s)", (pid,))
        (run,) = deployment.ended(experiment)
    assert_undisturbed(deployment, run)
    assert run.fence == 1


def test_a_server_that_is_away_for_a_while_is_waited_for(
    production: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = production
    beside, name = (
        at_the_server(deployment.database.url.set(database="postgres")),
        deployment.database.url.database,
    )

    def waits() -> bool:
        beside.execute(CUT, (name,))
        return "tried again in" in caplog.text

    with working(deployment), closing(beside):
        experiment = deployment.submit(SHORT, nudge=False)
        deployment.in_the_middle(experiment, 3)
        beside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            eventually(waits, timeout_s=END_S)
        finally:
            beside.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        (run,) = deployment.ended(experiment)
    assert_undisturbed(deployment, run)
    assert run.fence == 1


def test_a_heart_that_could_not_beat_for_whatever_reason_beats_again(
    production: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a backup is restored, whose tables come one after another."""
    with production.runner(), closing(at_the_server(production.database.url)) as server:
        eventually(production.workers, timeout_s=END_S)
        server.execute("ALTER TABLE worker RENAME TO not_there")
        eventually(lambda: "no heartbeat" in caplog.text, timeout_s=END_S)
        server.execute("ALTER TABLE not_there RENAME TO worker")
        server.execute("DELETE FROM worker")
        eventually(production.workers, timeout_s=END_S)


def test_a_file_that_another_process_keeps_locked_is_waited_for(
    embedded: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = open_database(str(embedded.database.url), lock_timeout_s=0.1)
    with (
        working(embedded, impatient),
        closing(
            sqlite3.connect(str(embedded.database.url.database), timeout=60, isolation_level=None)
        ) as other,
    ):
        experiment = embedded.submit(SHORT, nudge=False)
        embedded.in_the_middle(experiment, 3)
        other.execute("BEGIN IMMEDIATE")
        eventually(lambda: "tried again in" in caplog.text, timeout_s=END_S)
        other.rollback()
        (run,) = embedded.ended(experiment)
    assert_undisturbed(embedded, run)
