"""Copies of a whole database, taken while it is in use, and put into an empty one."""

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, inspect, select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from fedcore import bundles
from fedcore.errors import BackupError
from fedcore.platform.private_files import private_files
from fedcore.platform.status import ENDED
from fedcore.platform.store.database import POOLER, make_engine, parse_database_url
from fedcore.platform.store.migration import refuse_unknown
from fedcore.platform.store.tables import BundleRecord, DatasetRecord, RunRecord, WeightsRecord
from fedcore.platform.uploads import dataset_storage as datasets
from fedcore.platform.uploads import weights

SQLITE, POSTGRESQL = "fedq.db", "fedq.dump"
"""Name of the copy in its folder."""
_VERSION_OF_DUMP = re.compile(r"(?<=FROM stdin;\n)\S+")
_NO_LOG = b"\1\1"
"""Versions for reading and writing in the header of an SQLite file without a write-ahead log."""


def dump(url: str, folder: Path) -> Path:
    """Copy the database at `url` as it is at one moment into `folder`; raises BackupError."""
    refuse_database(folder)
    parsed = parse_database_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _copy(_file_of(parsed), folder / SQLITE, journal="DELETE")
    target = folder / POSTGRESQL
    # A dump that fails leaves the one before as it was.
    with private_files(), _replacing(target) as partial:
        _run(parsed, "pg_dump", "--format=custom", f"--file={partial}")
    return target


def refuse_database(folder: Path) -> None:
    """Raise BackupError if a database that is no copy is where `dump` would write one.

    FedQ keeps a write-ahead log for each database that it works on, which the file notes; copies have
    none, so that they are whole without further files.
    """
    file = folder / SQLITE
    if not file.exists():
        return
    with file.open("rb") as opened:
        versions = opened.read(20)[18:]
    if versions not in (b"", _NO_LOG):
        raise BackupError(
            f"{file} is a database that FedQ works on, or no database, and would be overwritten: give"
            " another folder for the backup"
        )


def check_loadable(url: str, folder: Path) -> None:
    """Raise BackupError unless the database at `url` is empty and the copy in `folder` is whole, and
    NewerSchemaError if this version does not know its schema.
    """
    parsed = parse_database_url(url)
    _refuse_if_filled(parsed)
    if parsed.get_backend_name() == "sqlite":
        source = _existing(folder / SQLITE)
        try:
            with closing(_opened(source)) as copy:
                _check_copy(copy, source)
                found = copy.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.Error as error:
            raise BackupError(f"{source} cannot be copied to {_file_of(parsed)}: {error}") from error
    else:
        source = _existing(folder / POSTGRESQL)
        options = ("--data-only", "--table=alembic_version", "--file=-", str(source))
        found = _VERSION_OF_DUMP.search(_check([_program("pg_restore"), *options], os.environ))
    if found is not None:
        refuse_unknown(found[0], f"the backup {source}")


def load(url: str, folder: Path) -> None:
    """Fill the database at `url` with the copy in `folder`, both of which `check_loadable` has accepted.

    Raises BackupError if it cannot be written, or has been filled meanwhile.
    """
    parsed = parse_database_url(url)
    _refuse_if_filled(parsed)
    if parsed.get_backend_name() == "sqlite":
        source, target = _existing(folder / SQLITE), _file_of(parsed)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _copy(source, target, journal="WAL")
    else:
        options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
        _run(parsed, "pg_restore", *options, str(_existing(folder / POSTGRESQL)))


def _copy(source: Path, target: Path, journal: str) -> Path:
    """By SQLite's own way of copying, which waits for writers and sees no half of a transaction."""
    try:
        with (
            private_files(),
            _replacing(target) as partial,
            closing(_opened(source)) as old,
            closing(sqlite3.connect(partial)) as new,
        ):
            old.backup(new)
            _check_copy(new, source)
            new.execute(f"PRAGMA journal_mode = {journal}")
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied to {target}: {error}") from error
    return target


def _opened(source: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)


def _check_copy(copy: sqlite3.Connection, source: Path) -> None:
    """Refuse a database that is damaged, or cut to nothing, which SQLite takes to be empty."""
    (told,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if told != "ok":
        raise BackupError(f"{source} is damaged: {' '.join(told.split())}")
    if not copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        raise BackupError(f"{source} is not a database of FedQ: it has no tables, or those of something else")


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Path of a file that replaces `target` at the end of the block.

    An error leaves `target` alone.
    """
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _file_of(url: URL) -> Path:
    assert url.database is not None
    return Path(url.database)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise BackupError(
            f"{path} does not exist: `fedq backup` writes {SQLITE} for SQLite and {POSTGRESQL} for PostgreSQL"
        )
    return path


def _refuse_if_filled(url: URL) -> None:
    if url.get_backend_name() == "sqlite" and not _file_of(url).exists():
        return
    made = make_engine(url)
    try:
        if inspect(made).get_table_names():
            raise BackupError(
                f"{url.render_as_string()} is not empty; a backup can be restored to an empty database only"
            )
    except DatabaseError as error:
        if isinstance(error.orig, sqlite3.Error):
            raise BackupError(f"{url.render_as_string()} cannot be opened: {error.orig}") from error
        raise
    finally:
        made.dispose()


def _run(url: URL, program: str, *arguments: str) -> None:
    path = _program(program)
    direct = url.difference_update_query([POOLER])
    plain = direct.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    # The password goes where a list of processes does not show it.
    environment = os.environ | ({"PGPASSWORD": str(url.password)} if url.password else {})
    _check([path, f"--dbname={plain}", *arguments], environment)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise BackupError(
            f"{name} is not on PATH: install the client programs of your PostgreSQL, or dump it where they"
            " are and take --files"
        )
    return path


def _check(command: Sequence[str], environment: Mapping[str, str]) -> str:
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - PostgreSQL's own program
    if ended.returncode:
        raise BackupError(f"{Path(command[0]).name} failed: {ended.stderr.strip()}")
    return ended.stdout


def ended_models(session: Session) -> Sequence[tuple[str | None, Mapping[str, Any]]]:
    """Storage key of the final model and provenance of each run that has ended."""
    query = select(RunRecord.model, RunRecord.provenance).where(RunRecord.status.in_(ENDED))
    return [(model, provenance) for model, provenance in session.execute(query)]


def upload_sizes(session: Session) -> Mapping[str, int]:
    """Size in bytes of each file that users have uploaded, by storage key."""
    tables = (
        (DatasetRecord, datasets.storage_key),
        (WeightsRecord, weights.storage_key),
        (BundleRecord, bundles.storage_key),
    )
    return {
        key(id, digest): size
        for table, key in tables
        for id, digest, size in session.execute(select(table.id, table.digest, table.size_bytes))
    }
