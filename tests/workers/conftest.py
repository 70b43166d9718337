"""A deployment: a database, a broker and a storage of its own, and real worker and reconciler processes
on them.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.databases import kept_database
from tests.workers.deployment import Deployment

LEASE_S = 1.5


@pytest.fixture(params=[("sqlite", "valkey"), ("postgresql", "redis")], ids=["embedded", "production"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment as the embedded stack has it, and one as a production has it."""
    database_kind, broker_kind = request.param
    yield from _deployment(request, tmp_path, database_kind, broker_kind)


@pytest.fixture
def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment as the embedded stack has it."""
    yield from _deployment(request, tmp_path, "sqlite", "valkey")


@pytest.fixture
def production(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """A deployment as a production has it."""
    yield from _deployment(request, tmp_path, "postgresql", "redis")


def _deployment(
    request: pytest.FixtureRequest, tmp_path: Path, database_kind: str, broker_kind: str
) -> Iterator[Deployment]:
    database_url: str = request.getfixturevalue(f"kept_{database_kind}_url")
    broker_url: str = request.getfixturevalue(f"{broker_kind}_url")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FEDQ_HOME": str(tmp_path),
        "FEDQ_DATABASE_URL": database_url,
        "FEDQ_BROKER_URL": broker_url,
        "FEDQ_STORAGE_URL": str(tmp_path / "storage"),
        "FEDQ_SLICE_SECONDS": "0.1",
        "FEDQ_LEASE_SECONDS": str(LEASE_S),
    }
    # As in a worker: a library may sum in another order on other threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Deployment(kept_database(database_url), broker_url, environment, tmp_path)
    torch.set_num_threads(threads)
