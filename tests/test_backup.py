"""Backups of files and database, and when they are refused."""

from pathlib import Path

import pytest

from fedcore.backup import back_up, restore
from fedcore.errors import BackupError
from fedcore.storage import open_storage
from fedcore.store import Database
from tests.store.acts import claim, commit, submit, the_run

sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@sqlite_only
def test_it_holds_files_and_later_gets_those_it_lacks(database: Database, database_url: str, tmp_path: Path) -> None:
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
    assert {path.relative_to(tmp_path / "new").as_posix(): path.read_bytes() for path in (tmp_path / "new").rglob("*.*")} == kept
    copy = Database(elsewhere)
    assert the_run(copy, experiment).done == 2
    copy.close()


@sqlite_only
def test_a_database_with_tables_is_not_written_over(database_url: str, tmp_path: Path) -> None:
    back_up(database_url, str(tmp_path / "storage"), tmp_path)
    with pytest.raises(BackupError, match="is not empty"):
        restore(database_url, str(tmp_path / "storage"), tmp_path)


def test_a_folder_without_a_backup_is_named(empty_url: str, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"there is no .*nothing/fedq\.(db|dump)"):
        restore(empty_url, str(tmp_path / "storage"), tmp_path / "nothing")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_without_the_programs_of_postgresql_it_says_what_to_do(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match="pg_dump is not on PATH"):
        back_up(database_url, str(tmp_path / "storage"), tmp_path)
