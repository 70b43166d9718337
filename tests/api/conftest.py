"""The application on a fresh database, with a client; on SQLite alone where the database makes no difference."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from api.app import create_app
from fedcore.platform.store import Database, open_database
from fedcore.settings import Settings
from tests.support.access import key_for
from tests.support.asgi import calling


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """A home of its own, and a broker that is not there; SQLite unless the test asks for `database_url`."""
    home = tmp_path / "home"
    home.mkdir()
    if "database_url" in request.fixturenames:
        url = request.getfixturevalue("database_url")
    else:
        url = f"sqlite:///{shutil.copy(request.getfixturevalue('sqlite_template'), home / 'fedq.db')}"
    return Settings(_env_file=None, home=home, database_url=url)


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def admin_key(settings: Settings) -> str:
    """The key of an administrator."""
    return key_for(settings.database)


@pytest.fixture
def http(app: FastAPI, admin_key: str) -> Iterator[httpx.Client]:
    """An administrator's client of the application."""
    with calling(app, admin_key) as client:
        yield client


@pytest.fixture
def rows(settings: Settings) -> Iterator[Database]:
    """The application's database."""
    database = open_database(settings.database)
    yield database
    database.close()
