"""Fills a database: one experiment is made as users and workers make it, and copied by SQL."""

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from bench.load.phases import SPEC
from bench.load.writer import PROVENANCE, report
from fedcore import ExperimentSpec
from fedcore.platform.access import Scope
from fedcore.platform.store import Database, experiments, keys, open_database, runs
from fedcore.platform.store.clock import database_time
from fedcore.platform.store.experiments import NewExperiment
from fedcore.platform.store.leases import Claimant
from fedcore.platform.store.records import make_ids

RUNS = 10
"""Runs of each experiment."""
BYTES_PER_ROUND = 120
"""Of the ten measures of `bench.load.writer`, with indexes; measured with 200 rounds, which are a block."""
BATCH = 200
"""Experiments copied in one transaction."""
LEASE_S = 600.0
QUIET = "quiet"
"""Queue in which one owner waits, however many there are."""


@dataclass(frozen=True)
class Sizes:
    """How much there is."""

    owners: int
    experiments: int
    rounds: int
    """Of each run."""

    @property
    def rounds_in_all(self) -> int:
        """Rounds of all runs."""
        return self.experiments * RUNS * self.rounds

    def __str__(self) -> str:
        return (
            f"{self.owners:,} owners, {self.experiments:,} experiments, {RUNS * self.experiments:,} runs,"
            f" {self.rounds_in_all:,} rounds"
        )


@dataclass(frozen=True)
class Filled:
    """Names of what there is."""

    tokens: list[str]
    """A key of each owner."""
    admin: str
    """A key with the scope `admin`."""


def fill(url: str, sizes: Sizes) -> Filled:
    """Fill an empty database."""
    with closing(open_database(url)) as database:
        with database.transaction() as session:
            made = [
                keys.create(session, owner=f"owner-{number}", scope=Scope.SUBMIT)
                for number in range(sizes.owners)
            ]
            admin = keys.create(session, owner="operator", scope=Scope.ADMIN)[1].text
        owners = [(record.owner, record.id) for record, _ in made]
        finished = _finished(database, owners[0], sizes.rounds)
        waiting = _created(database, owners[0], sizes.rounds)
        _created(database, owners[0], sizes.rounds, QUIET)
    _copy(url, finished, sizes.experiments - 1, owners)
    _copy(url, waiting, sizes.owners - 1, owners[1:])
    with _connection(url) as connection:
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")
    return Filled([token.text for _, token in made], admin)


def size_of(url: str) -> int:
    """Bytes of a database."""
    with _connection(url) as connection:
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert found is not None
    return int(found[0])


def _created(database: Database, owner: tuple[str, str], rounds: int, queue: str = "default") -> str:
    """Submit an experiment of an owner, by name and key; its id."""
    changes = {
        "tags": ["scale"],
        "seeds": list(range(RUNS)),
        "rounds": rounds,
        "execution": {"queue": queue},
    }
    spec = ExperimentSpec.model_validate(SPEC | changes)
    with database.transaction() as session:
        new = NewExperiment(spec, owner=owner[0], key_id=owner[1])
        return experiments.create(session, new).record.id


def _finished(database: Database, owner: tuple[str, str], rounds: int) -> str:
    """Submit an experiment of an owner and finish its runs; its id."""
    experiment_id = _created(database, owner, rounds)
    reports = [report(round) for round in range(1, rounds + 1)]
    for _ in range(RUNS):
        with database.transaction() as session:
            claim = runs.claim(session, Claimant("filler", ("default",)), LEASE_S)
            assert claim is not None
            runs.commit_slice(
                session, claim, reports, checkpoint="filled", lease_s=LEASE_S, provenance=PROVENANCE
            )
            runs.finish(session, claim.at(rounds, "filled"), model=None, provenance=PROVENANCE)
    return experiment_id


def _copy(url: str, template: str, count: int, owners: list[tuple[str, str]]) -> None:
    """Make copies of an experiment, each a second older than the next, for these owners, with their
    keys, in turn.
    """
    with closing(open_database(url)) as database, database.reading() as session:
        moment = database_time(session)
        own = [run.id for run in runs.of_experiment(session, template)]
    with _connection(url) as connection:
        for start in range(0, count, BATCH):
            connection.execute(COPIES)
            numbers = range(start, min(start + BATCH, count))
            dated = [moment - timedelta(seconds=count - number) for number in numbers]
            ids = [make_ids("exp", at, 1)[0] for at in dated]
            holders = [owners[number % len(owners)] for number in numbers]
            with connection.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as copy:
                for id, at, holder in zip(ids, dated, holders, strict=True):
                    copy.write_row((id, *holder, at))
            with connection.cursor() as cursor, cursor.copy("COPY copied_run FROM STDIN") as copy:
                for id, at, holder in zip(ids, dated, holders, strict=True):
                    for new, old in zip(make_ids("run", at, len(own)), own, strict=True):
                        copy.write_row((new, old, id, *holder))
            _insert(connection, template)
            connection.execute("DROP TABLE copied, copied_run")
            connection.commit()


COPIES = """
CREATE TEMP TABLE copied (id text, owner text, key_id text, at timestamptz);
CREATE TEMP TABLE copied_run (id text, old text, experiment_id text, owner text, key_id text)
"""
EXPERIMENT: dict[str, dict[str, str]] = {
    "experiment": {"id": "c.id", "owner": "c.owner", "created_at": "c.at", "updated_at": "c.at"},
    "experiment_tag": {"experiment_id": "c.id"},
    "arm": {"experiment_id": "c.id"},
}
"""Columns that differ in a copy, by table of an experiment."""
RUN: dict[str, dict[str, str]] = {
    "run": {"id": "c.id", "experiment_id": "c.experiment_id", "owner": "c.owner", "key_id": "c.key_id"},
    "block": {"run_id": "c.id"},
    "run_log": {"run_id": "c.id"},
    "run_resources": {"run_id": "c.id"},
}
"""As `EXPERIMENT`, by table of its runs."""


def _insert(connection: psycopg.Connection[Any], template: str) -> None:
    """Copy the rows of a template for all that is in `copied`."""
    for table, changed in EXPERIMENT.items():
        matching = sql.SQL(", copied c WHERE {key} = %s").format(key=_key(changed))
        connection.execute(_selected(connection, table, changed) + matching, [template])
    for table, changed in RUN.items():
        matching = sql.SQL(" JOIN copied_run c ON {key} = c.old").format(key=_key(changed))
        connection.execute(_selected(connection, table, changed) + matching)


def _key(changed: dict[str, str]) -> sql.Identifier:
    return sql.Identifier("t", next(iter(changed)))


def _selected(connection: psycopg.Connection[Any], table: str, changed: dict[str, str]) -> sql.Composed:
    """INSERT of rows of `table` t with some columns changed, up to its FROM."""
    found = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = %s", [table]
    )
    columns = [name for (name,) in found]
    values = [sql.Identifier(*changed.get(name, f"t.{name}").split(".")) for name in columns]
    return sql.SQL("INSERT INTO {table} ({names}) SELECT {values} FROM {table} t").format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join(values),
    )


def _connection(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
