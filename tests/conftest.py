"""Real servers for the whole run, and fresh databases and brokers for each test.

`TEST_DATABASE_URL` (a PostgreSQL user who may create databases) and `TEST_REDIS_URL` (a Redis at
`redis://host:port`, whose databases 0 to 7 may be flushed) are used instead of our own when given.
A server that cannot be had fails the tests that need it.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from zlib import crc32

import hypothesis
import pytest

from fedcore.engine.process_tuning import release_freed_memory, release_library_pages
from fedcore.platform.store import Database, upgrade
from tests.support import commands
from tests.support.brokers import broker, connect
from tests.support.databases import cloned_database, copied_file, kept_database
from tests.support.polling import eventually
from tests.support.postgresql import fresh_database, postgresql, quickest_folder
from tests.support.service import Service, running_service

if TYPE_CHECKING:
    from tests.support.s3 import S3

# The same examples every time, however slow the machine.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")
# While tests are collected, the collector of garbage finds next to nothing, and takes a fifth of the time.
gc.disable()

# Notes of running stacks are for the tests alone.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="fedq-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

DATABASES = ("sqlite", "postgresql")
BROKERS = ("redis", "valkey")
MARK_OF_MODULE = re.compile(r"^pytestmark = pytest\.mark\.(\w+)$", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules all of whose tests `-m` leaves out: some take seconds to list them."""
    if not collection_path.match("test_*.py"):
        return None
    mark = MARK_OF_MODULE.search(collection_path.read_text())
    return True if mark and f"not {mark[1]}" in config.option.markexpr.split(" and ") else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the night one of the two databases of each quick test that runs on both.

    Which of them depends on the name of the test alone, so that each has half of the tests.
    """
    kinds: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and not item.get_closest_marker("slow")
        ):
            kind = item.callspec.params.get("database_url")
            if kind in DATABASES:
                kinds.setdefault(item.nodeid.replace(f"[{kind}", "["), {})[kind] = item
    for name, both in kinds.items():
        if len(both) == len(DATABASES):
            both[DATABASES[crc32(name.encode()) % len(DATABASES)]].add_marker(pytest.mark.nightly)


def pytest_collection_finish() -> None:
    """Have the collector of garbage look at nothing but what tests make, and give back what collecting
    them took.

    Modules and tests are millions of objects, which stay.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    release_freed_memory()
    release_library_pages()


def pytest_unconfigure() -> None:
    """Let the interpreter end as it does otherwise: libraries complain of objects that stay."""
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _freed_memory() -> Iterator[None]:
    """Return to the system what the tests of a module have freed: runs keep it for their next round."""
    yield
    release_freed_memory()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL server's maintenance database."""
    given = os.environ.get("TEST_DATABASE_URL")
    with ExitStack() as stack:
        yield given or stack.enter_context(postgresql())


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The Celery URL of a Redis server."""
    given = os.environ.get("TEST_REDIS_URL")
    with ExitStack() as stack:
        yield _own_database(given) if given else stack.enter_context(broker("redis"))


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """The Celery URL of a Valkey server."""
    with broker("valkey") as url:
        yield url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """The Celery URL of an empty Redis."""
    return _flushed(redis_server)


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    """The Celery URL of an empty Valkey."""
    return _flushed(valkey_server)


@pytest.fixture(params=BROKERS)
def broker_url(request: pytest.FixtureRequest) -> str:
    """The Celery URL of an empty broker, of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: str) -> Iterator[str]:
    """The name of a migrated database to clone."""
    name = f"fedq_template_{uuid.uuid4().hex}"
    with fresh_database(postgresql_server, name) as url:
        upgrade(url)
        yield name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database file to copy."""
    path = tmp_path_factory.mktemp("template") / "fedq.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'fedq.db'}"
    else:
        with fresh_database(request.getfixturevalue("postgresql_server"), f"fedq_{uuid.uuid4().hex}") as url:
            yield url


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a migrated SQLite file without rows."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'fedq.db')}"


@pytest.fixture
def postgresql_url(postgresql_server: str, postgresql_template: str) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database without rows."""
    with fresh_database(postgresql_server, f"fedq_{uuid.uuid4().hex}", postgresql_template) as url:
        yield url


@pytest.fixture(scope="session")
def kept_sqlite_file() -> Iterator[Path]:
    """Where one test after another has its SQLite file."""
    with tempfile.TemporaryDirectory(prefix="fedq-db-", dir=quickest_folder()) as folder:
        yield Path(folder, "fedq.db")


@pytest.fixture
def kept_sqlite_url(sqlite_template: Path, kept_sqlite_file: Path) -> Iterator[str]:
    """The URL of a migrated SQLite file without rows, for `kept_database`."""
    with copied_file(sqlite_template, kept_sqlite_file) as url:
        yield url


@pytest.fixture(scope="session")
def kept_postgresql_name() -> str:
    """The name of the PostgreSQL database of one test after another."""
    return f"fedq_{uuid.uuid4().hex}"


@pytest.fixture
def kept_postgresql_url(
    postgresql_server: str, postgresql_template: str, kept_postgresql_name: str
) -> Iterator[str]:
    """The URL of a migrated PostgreSQL database without rows, for `kept_database`."""
    with cloned_database(postgresql_server, kept_postgresql_name, postgresql_template) as url:
        yield url


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database without rows, of each kind."""
    url: str = request.getfixturevalue(f"kept_{request.param}_url")
    return url


@pytest.fixture
def database(database_url: str) -> Database:
    """A migrated database without rows, of each kind."""
    return kept_database(database_url)


@pytest.fixture(scope="session")
def running(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running HTTP service."""
    with running_service(Path(shutil.copy(sqlite_template, tmp_path_factory.mktemp("service")))) as service:
        yield service


@pytest.fixture
def service(running: Service) -> Iterator[Service]:
    """A running HTTP service without experiments."""
    yield running
    running.clear()


@pytest.fixture(scope="session")
def s3_of_all() -> Iterator[S3]:
    """An S3 server for one test after another."""
    # Here, because few tests need it and it takes a second to load.
    from tests.support.s3 import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_of_all: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An S3 server that this process uses, without faults at first. Requests are repeated once, soon."""
    from s3fs import S3FileSystem

    for name, value in {**s3_of_all.environment, "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(S3FileSystem, "retries", 2)
    S3FileSystem.clear_instance_cache()
    yield s3_of_all
    s3_of_all.fail()
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a path short enough for sockets.

    No process is left that was started there (see `tests.support.commands`).
    """
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        eventually(lambda: not commands.running_in(Path(folder)))


def _own_database(url: str) -> str:
    """A Redis database for each of the processes that share the tests: `gw0`, `gw1` ..., or only
    one.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return urlsplit(url)._replace(path=f"/{number}").geturl()


def _flushed(url: str) -> str:
    with connect(url) as client:
        client.flushdb()
    return url
