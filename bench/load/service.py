"""The service under load: PostgreSQL with default durability, one API process, and keys of several
owners.
"""

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
from sqlalchemy import make_url

from fedcore.platform.access import Scope
from fedcore.platform.store import keys, open_database, upgrade
from tests.support.polling import eventually
from tests.support.postgresql import postgresql
from tests.support.processes import served
from workers.embedded.stack import API

OWNERS = 20
"""People, each with a key of their own and its rate limit."""


@dataclass(frozen=True)
class Service:
    """The running processes."""

    port: int
    database_url: str
    keys: list[str]
    """One of each owner."""
    api: psutil.Process
    server: psutil.Process
    """PostgreSQL's."""

    def memory(self) -> tuple[float, float]:
        """MB of the API process, resident, and of PostgreSQL, whose processes share pages, as
        proportional set sizes.
        """
        parts = [self.server, *self.server.children(recursive=True)]
        return self.api.memory_info().rss / 1e6, sum(part.memory_full_info().pss for part in parts) / 1e6

    def processor(self) -> tuple[float, float, float]:
        """Seconds of processor time so far: the API process, PostgreSQL, and this process."""
        own = [sum(process.cpu_times()[:2]) for process in (self.api, psutil.Process())]
        served = sum(
            sum(part.cpu_times()[:4]) for part in (self.server, *self.server.children(recursive=True))
        )
        return own[0], served, own[1]

    def verify(self, experiments: Mapping[str, int], rows: Mapping[str, int]) -> None:
        """Check that everything is there: the experiments with their runs, and the rows of each
        run, numbered from 1.
        """
        with psycopg.connect(self.database_url.replace("postgresql+psycopg", "postgresql")) as connection:
            runs: dict[str, int] = dict(
                connection.execute(
                    "SELECT experiment_id, count(*) FROM run GROUP BY experiment_id"
                ).fetchall()
            )
            found = connection.execute(
                "SELECT run_id, sum(jsonb_array_length(rounds::jsonb -> 'committed_at')), max(last)"
                " FROM block GROUP BY run_id"
            ).fetchall()
        if runs != experiments:
            raise RuntimeError(
                "experiments in the database and those answered with 201 differ:"
                f" {runs.items() ^ experiments.items()}"
            )
        if {run_id: spread for run_id, *spread in found} != {
            run_id: [count, count] for run_id, count in rows.items()
        }:
            raise RuntimeError(f"rows are missing: {found}")


@contextmanager
def service() -> Iterator[Service]:
    """Start a service on the loopback, with a database of its own, and stop it at the end."""
    with postgresql(durable=True) as url:
        upgrade(url)
        with serving(url, _keys(url)) as running:
            yield running


@contextmanager
def serving(url: str, keys: list[str]) -> Iterator[Service]:
    """Start an API process over the database at `url`, and stop it at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0), backlog=512) as listener,
    ):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own = {
            "FEDQ_HOME": folder,
            "FEDQ_DATABASE_URL": url,
            "FEDQ_BROKER_URL": f"filesystem://{folder}",
        }
        descriptor, port = listener.fileno(), listener.getsockname()[1]
        with served(
            [*API, f"--fd={descriptor}"], Path(folder, "log"), env=os.environ | own, pass_fds=(descriptor,)
        ) as child:
            eventually(
                lambda: httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=30, trust_env=False).is_success
            )
            yield Service(port, url, keys, psutil.Process(child.pid), _server(url))


def _keys(url: str) -> list[str]:
    with closing(open_database(url)) as database, database.transaction() as session:
        return [
            keys.create(session, owner=f"owner-{number}", scope=Scope.SUBMIT)[1].text
            for number in range(OWNERS)
        ]


def _server(url: str) -> psutil.Process:
    folder = str(make_url(url).query["host"])
    return next(process for process in psutil.Process().children() if folder in " ".join(process.cmdline()))
