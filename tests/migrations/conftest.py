"""Fixtures of pytest-alembic's own tests, on each kind of database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_alembic import Config
from sqlalchemy import Engine

import migrations
from fedcore.platform.store.database import make_engine, parse_database_url
from fedcore.platform.store.migration import configuration
from fedcore.platform.store.tables import Base


@pytest.fixture
def alembic_config() -> Config:
    (folder,) = migrations.__path__
    return Config(
        alembic_config=configuration(Path(folder)), config_options={"target_metadata": Base.metadata}
    )


@pytest.fixture
def alembic_engine(empty_url: str) -> Iterator[Engine]:
    made = make_engine(parse_database_url(empty_url))
    yield made
    made.dispose()
