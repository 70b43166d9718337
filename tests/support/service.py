"""The HTTP service as its users have it: a process of its own, behind a real socket."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from sqlalchemy import select

from fedcore.platform.storage import Storage, open_storage
from fedcore.platform.store import Database, experiments, open_database
from fedcore.platform.store.datasets import DATASETS
from fedcore.platform.store.tables import ExperimentRecord
from tests.support.access import key_for
from tests.support.polling import eventually
from tests.support.processes import served
from workers.embedded.stack import API


@dataclass(frozen=True)
class Service:
    """A running service and what lies behind it; no worker takes its runs but the tests
    themselves.
    """

    url: str
    database: Database
    database_url: str
    storage_url: str
    key: str
    """Of an administrator."""
    pid: int

    @property
    def storage(self) -> Storage:
        """Where its files are."""
        return open_storage(self.storage_url)

    def clear(self) -> None:
        """Remove all experiments and data sets."""
        with self.database.transaction() as session:
            for id in session.scalars(select(ExperimentRecord.id)).all():
                experiments.delete(session, id)
            for kept in DATASETS.page(session, None, limit=1_000).items:
                DATASETS.delete(session, kept.id, None)


@contextmanager
def running_service(database_file: Path) -> Iterator[Service]:
    """A service on a migrated SQLite file, all its state beside it; its broker is not there."""
    home, database_url = database_file.parent, f"sqlite:///{database_file}"
    own = {
        "FEDQ_HOME": str(home),
        "FEDQ_DATABASE_URL": database_url,
        "FEDQ_BROKER_URL": f"redis+socket://{home / 'nowhere'}",
    }
    own["FEDQ_STORAGE_URL"] = str(home / "storage")
    database = open_database(database_url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the embedded stack does
        descriptor, url = listener.fileno(), f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment = os.environ | own | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with served(
            [*API, f"--fd={descriptor}"], home / "api.log", env=environment, cwd=home, pass_fds=(descriptor,)
        ) as process:
            eventually(lambda: httpx.get(f"{url}/healthz", timeout=30, trust_env=False).is_success)
            yield Service(
                url, database, database_url, own["FEDQ_STORAGE_URL"], key_for(database_url), process.pid
            )
    database.close()
