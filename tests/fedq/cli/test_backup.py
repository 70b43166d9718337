"""`fedq backup` and `fedq restore` of an embedded service."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedcore.platform.store import keys, open_database
from fedcore.settings import settings
from fedq.cli import main
from tests.builders.transactions import read
from tests.support.s3 import S3, Fault

KEY = "create", "ann", "--direct"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, with the umask that systems have by default."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    yield
    os.umask(before)
    settings.cache_clear()


def test_a_service_with_nothing_but_a_key_is_restored_from_its_backup_for_its_user_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _fedq(monkeypatch, "one", "key", *KEY) == 0
    assert _fedq(monkeypatch, "one", "backup", "copy") == 0
    assert _fedq(monkeypatch, "two", "restore", "copy") == 0
    with closing(open_database("sqlite:///two/fedq.db")) as database:
        assert [key.owner for key in read(database, keys.page).items] == ["ann"]
    for folder in map(Path, ("one", "copy", "two")):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_home_that_others_could_read_is_closed_when_it_is_restored_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _fedq(monkeypatch, "one", "key", *KEY) == 0
    assert _fedq(monkeypatch, "one", "backup", "copy") == 0
    Path("two").mkdir(mode=0o755)
    # As a file of variables may have it.
    monkeypatch.setenv("FEDQ_DATABASE_URL", "")
    assert _fedq(monkeypatch, "two", "restore", "copy") == 0
    assert Path("two").stat().st_mode & 0o777 == 0o700
    assert Path("two", "fedq.db").stat().st_mode & 0o777 == 0o600


def test_faults_of_a_backup_are_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("copy").mkdir()
    Path("copy", "fedq.db").write_bytes(b"no database" * 1_000)
    assert _fedq(monkeypatch, "home", "restore", "copy") == 2
    assert capsys.readouterr().err.split("\n")[0].startswith("fedq: copy/fedq.db cannot be copied to ")


@pytest.mark.parametrize("command", [("migrate",), ("backup", "copy")])
def test_a_home_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert _fedq(monkeypatch, "typo", *command) == 3
    said = " ".join(capsys.readouterr().err.split())
    folder = Path("typo").absolute()
    assert said.startswith(
        f"fedq: the database is unavailable: there is no folder {folder}; set FEDQ_HOME or"
    )
    assert "sqlalche.me" not in said
    assert not folder.exists()


def test_a_storage_that_fails_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], s3: S3
) -> None:
    assert _fedq(monkeypatch, "home", "key", *KEY) == 0
    bucket = s3.bucket()
    monkeypatch.setenv("FEDQ_STORAGE_URL", f"s3://{bucket}/fedq")
    s3.client.put_object(Bucket=bucket, Key="fedq/datasets/one.npz", Body=b"arrays")
    capsys.readouterr()
    s3.fail(Fault.CUT)
    assert _fedq(monkeypatch, "home", "backup", "copy") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("fedq: the storage failed: datasets could not be listed: ")
    s3.fail()
    assert _fedq(monkeypatch, "home", "backup", "copy") == 0
    assert Path("copy/storage/datasets/one.npz").read_bytes() == b"arrays"


def _fedq(monkeypatch: pytest.MonkeyPatch, home: str, *arguments: str) -> object:
    """The exit code of a command of the service in `home`."""
    monkeypatch.setenv("FEDQ_HOME", home)
    settings.cache_clear()
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code or 0
