"""Messages about a database of another version of FedQ: one line, with what to do."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from fedcore.errors import NewerSchemaError, SchemaError
from fedcore.platform.store import check_schema, migration, open_database, require_schema, upgrade
from fedcore.settings import settings
from fedq.cli import main
from workers.embedded import supervisor

NEWER = "9999"
DEVELOPMENT = "0033"
INSTALL = (
    "is of a newer FedQ (schema 9999; this one knows {newest}): install that version, or restore a backup"
)
MIGRATE = "run `fedq migrate`"


def set_version(url: str, version: str) -> None:
    with closing(open_database(url)) as database, database.transaction() as session:
        session.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})


def version_of(url: str) -> str:
    with closing(open_database(url)) as database, database.reading() as session:
        return str(session.scalar(text("SELECT version_num FROM alembic_version")))


@pytest.fixture
def newest(empty_url: str) -> str:
    """The newest revision, which the database has."""
    upgrade(empty_url)
    return version_of(empty_url)


def test_a_newer_database_is_named_with_what_to_install_and_left_alone(
    empty_url: str, newest: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_schema(empty_url)
    set_version(empty_url, NEWER)
    for act in (check_schema, upgrade):
        with pytest.raises(NewerSchemaError) as refused:
            act(empty_url)
        assert INSTALL.format(newest=newest) in str(refused.value)
        assert "\n" not in str(refused.value)
    assert version_of(empty_url) == NEWER
    require_schema(empty_url)
    assert INSTALL.format(newest=newest) in caplog.text


def test_an_older_database_is_refused_with_the_command_that_mends_it(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SchemaError, match=f"has no tables of FedQ yet: {MIGRATE}"):
        check_schema(empty_url)
    upgrade(empty_url)
    require_schema(empty_url)
    later = tmp_path / "versions" / "9000_later.py"
    later.parent.mkdir()
    for name in ("0100_initial.py", later.name):
        (later.parent / name).touch()
    monkeypatch.setattr(migration, "files", lambda _: tmp_path)
    with pytest.raises(SchemaError, match=rf"is of an older FedQ \(schema 0100; .* 9000\): {MIGRATE}"):
        check_schema(empty_url)
    with pytest.raises(SchemaError, match=MIGRATE):
        require_schema(empty_url)


@pytest.mark.parametrize("act", [check_schema, require_schema, upgrade])
def test_a_database_of_before_the_first_release_is_refused_and_left_alone(
    act: Callable[[str], None], sqlite_url: str
) -> None:
    set_version(sqlite_url, DEVELOPMENT)
    with pytest.raises(SchemaError, match=r"is of a FedQ before 0\.1\.0 \(schema 0033\).*`fedq import`"):
        act(sqlite_url)
    assert version_of(sqlite_url) == DEVELOPMENT


def test_a_database_that_is_away_is_waited_for() -> None:
    require_schema("postgresql://fedq:secret@127.0.0.1:9/fedq")


def test_passwords_are_no_part_of_the_message(postgresql_url: str) -> None:
    set_version(postgresql_url, NEWER)
    with_password = make_url(postgresql_url).set(password="hunter2")
    with pytest.raises(NewerSchemaError) as refused:
        check_schema(with_password.render_as_string(hide_password=False))
    assert "hunter2" not in str(refused.value)


@pytest.fixture
def home(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of `fedq up` with a database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDQ_HOME", str(tmp_path))
    monkeypatch.delenv("FEDQ_DATABASE_URL", raising=False)
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


COMMANDS = (("migrate",), ("key", "create", "ann", "--direct"), ("backup", "copy"))


@pytest.mark.parametrize("command", [*COMMANDS, None], ids=lambda command: " ".join(command or ("up",)))
def test_commands_refuse_a_newer_database_in_one_line(
    home: Path, sqlite_url: str, command: tuple[str, ...] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    set_version(sqlite_url, NEWER)
    if command is None:
        code: object = supervisor.main([f"--home={home}", "--port=0", "--workers=1"])
    else:
        with pytest.raises(SystemExit) as ended:
            main(command)
        code = ended.value.code
    (line,) = capsys.readouterr().err.splitlines()
    assert code == (1 if command is None else 2)
    assert line.startswith(f"fedq: the database sqlite:///{home}/fedq.db is of a newer FedQ")


def test_a_backup_of_an_older_database_is_refused(
    home: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """This version looks for columns that it lacks."""
    set_version(sqlite_url, DEVELOPMENT)
    with pytest.raises(SystemExit) as ended:
        main(["backup", "copy"])
    assert ended.value.code == 2
    assert "of a FedQ before 0.1.0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "process",
    [
        ("api", "--factory", "api.app:create_app", "--port", "0"),
        pytest.param(
            ("uvicorn", "--factory", "api.app:create_app", "--port", "0"), marks=pytest.mark.nightly
        ),
        ("workers.worker",),
        ("workers.reconciler",),
    ],
    ids=lambda process: process[0],
)
def test_processes_of_the_service_end_in_one_line_on_an_older_database(
    home: Path, sqlite_url: str, process: tuple[str, ...]
) -> None:
    set_version(sqlite_url, DEVELOPMENT)
    done = subprocess.run(
        [sys.executable, "-m", *process],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"fedq: the database sqlite:///{home}/fedq.db is of a FedQ before 0.1.0 (schema 0033)"
    )
