"""A backup of the service while it runs: the database as it is at one moment, and the files that it
names.

Files are copied before the database and again after it. Before: a run goes on from a checkpoint
that may be deleted by the time the database is copied, for newer ones. After: models and data sets
that came meanwhile are named in the database. So each run finds a checkpoint of the round that the
copy knows or of one before, and plays the rounds between again, to the same bits.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO

from fedcore.errors import BackupError, ResourceNotFoundError, SchemaError
from fedcore.platform.private_files import make_private_folder, private_files
from fedcore.platform.provenance import model_digests, model_pieces
from fedcore.platform.storage import Storage, folder_of, open_storage, save_as
from fedcore.platform.store import Database, check_schema, open_database, runs
from fedcore.platform.store.dump import (
    check_loadable,
    dump,
    ended_models,
    load,
    refuse_database,
    upload_sizes,
)

FILES = "storage"
SHOWN = 5
"""Files that a message names."""
_UPLOADS = ("datasets", "bundles", "weights")


def back_up(database_url: str, storage_url: str, folder: Path) -> None:
    """Copy database and files into `folder`, which only the user of this process can read then.

    It may hold an older backup of the same service. Raises BackupError, also where a service keeps its
    database or storage in it.
    """
    _refuse_state(storage_url, folder)
    make_private_folder(folder)
    with private_files():
        back_up_files(database_url, storage_url, folder)
        dump(database_url, folder)
        back_up_files(database_url, storage_url, folder)


def back_up_files(database_url: str, storage_url: str, folder: Path) -> None:
    """Copy the files that `folder` does not have yet, before and after the database is copied.

    Their modes are left to the umask: who restores them may be another user, as in a container. Raises
    BackupError where a service keeps its database or storage in `folder`.
    """
    _refuse_state(storage_url, folder)
    storage, database = open_storage(storage_url), open_database(database_url)
    try:
        for key in _keys(storage, database):
            _fetch(storage, key, folder / FILES / key)
    finally:
        database.close()


def restore(database_url: str, storage_url: str, folder: Path) -> None:
    """Put a backup into an empty database and its files into the storage.

    Raises BackupError and NewerSchemaError, before it writes anything, where the backup or the database
    cannot be used; and BackupError at the end if files are missing or damaged that the database names.
    """
    check_loadable(database_url, folder)
    storage = open_storage(storage_url)
    _put_files(storage, folder)
    load(database_url, folder)
    with closing(open_database(database_url)) as database:
        lost = list(_lost_files(storage, folder, database))
    if lost:
        named = ", ".join(lost[:SHOWN]) + (", ..." if len(lost) > SHOWN else "")
        raise BackupError(
            f"the backup is restored, but {len(lost)} of its files are missing or damaged: {named}; if an"
            " older backup has them, put them into the storage"
        )


def restore_files(storage_url: str, folder: Path) -> None:
    """Copy the files of a backup into the storage; raises BackupError if there are none.

    Call it before the database is restored, so that no reference points to a missing file.
    """
    if not (folder / FILES).is_dir():
        raise BackupError(f"{folder / FILES} does not exist: `fedq backup --files` makes it")
    _put_files(open_storage(storage_url), folder)


def _put_files(storage: Storage, folder: Path) -> None:
    root = folder / FILES
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")):
        storage.put_file(path.relative_to(root).as_posix(), path)


def _lost_files(storage: Storage, folder: Path, database: Database) -> Iterator[str]:
    """Keys of models of ended runs, and of uploads, that the storage does not have as they were stored. What
    came from `folder` is read there.

    None where the database is of an older version, which is migrated first.
    """
    try:
        check_schema(database.url.render_as_string(hide_password=False))
    except SchemaError:
        return
    with database.reading() as session:
        models, sizes = ended_models(session), upload_sizes(session)
    digests = {key: digest for run in models for key, digest in model_digests(*run).items()}
    for key in (*digests, *sizes):
        copy = folder / FILES / key
        try:
            file = copy.open("rb") if copy.is_file() else storage.open(key)
            if key in sizes:
                _check_size(file, key, sizes[key])
            else:
                deque(model_pieces(file, key, digests[key]), maxlen=0)
        except ResourceNotFoundError:
            yield key


def _check_size(file: BinaryIO, key: str, size: int) -> None:
    with file:
        if file.seek(0, os.SEEK_END) != size:
            raise ResourceNotFoundError(f"{key} has not the size with which it was stored")


def _refuse_state(storage_url: str, folder: Path) -> None:
    refuse_database(folder)
    live, target = folder_of(storage_url), folder / FILES
    if live is not None and live.resolve() == target.resolve():
        raise BackupError(f"{target} is the storage of the service: give another folder for the backup")


def _keys(storage: Storage, database: Database) -> Iterable[str]:
    with database.reading() as session:
        prefixes = [*_UPLOADS, *runs.ids(session)]
    for prefix in prefixes:
        yield from storage.keys(prefix)


def _fetch(storage: Storage, key: str, target: Path) -> None:
    """Copy a file, which never changes once it is there, unless it is there or was deleted
    meanwhile.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(ResourceNotFoundError):
        save_as(storage.open(key), target)
