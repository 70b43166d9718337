"""A backup of the service while it runs: the database as it is at one moment, and the files that it
names.

Files are copied before the database and again after it. Before: a run goes on from a checkpoint
that may be deleted by the time the database is copied, for newer ones. After: models and data sets
that came meanwhile are named in the database. So each run finds a checkpoint of the round that the
copy knows or of one before, and plays the rounds between again, to the same bits.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from fedcore.errors import BackupError, ResourceNotFoundError
from fedcore.platform.private_files import make_private_folder, private_files
from fedcore.platform.storage import Storage, folder_of, open_storage
from fedcore.platform.store import Database, open_database, runs
from fedcore.platform.store.dump import dump, load, refuse_database

FILES = "storage"
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
    """Put a backup into an empty database and its files into the storage; raises BackupError."""
    restore_files(storage_url, folder)
    load(database_url, folder)


def restore_files(storage_url: str, folder: Path) -> None:
    """Copy the files of a backup into the storage.

    Call it before the database is restored, so that no reference points to a missing file.
    """
    storage, root = open_storage(storage_url), folder / FILES
    for path in sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")):
        storage.put_file(path.relative_to(root).as_posix(), path)


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
    partial = target.with_name(f".{target.name}.partial")
    try:
        with storage.open(key) as source, partial.open("wb") as file:
            shutil.copyfileobj(source, file)
    except ResourceNotFoundError:
        return
    partial.replace(target)
