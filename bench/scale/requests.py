"""Times of requests, claims and migrations on one database."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import httpx
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Integer

from bench.load.phases import SPEC
from bench.load.service import Service, serving
from bench.scale.fill import LEASE_S, QUIET, Filled
from fedcore.platform.store import Database, Status, open_database, runs, service_metrics, upgrade
from fedcore.platform.store.leases import Claimant
from fedcore.platform.store.migration import migrating

MOST = 1_000
"""Repetitions of a measurement."""
SEEN_S = 60.0


def measured(url: str, filled: Filled, seconds: float) -> dict[str, list[float]]:
    """Seconds of each kind of work, by name: repetitions during `seconds` each."""
    found = {}
    with closing(open_database(url)) as database:
        for name, work in _store(database).items():
            found[name] = _repeated(work, seconds)
    with serving(url, filled.tokens) as running, _clients(running, filled) as (user, admin):
        for name, work in (_requests(user) | _of_all_owners(admin)).items():
            found[name] = _repeated(work, seconds)
    with closing(open_database(url)) as database:
        found["migration of an up-to-date database"] = _repeated(
            lambda: _timed(lambda: upgrade(url)), seconds
        )
        found["migration that adds a column to `run`"] = _repeated(lambda: _add_column(url), seconds)
    return found


def _repeated(work: Callable[[], float], seconds: float) -> list[float]:
    """Times that `work` reports; the first one, which warms caches, is left out."""
    work()
    end, times = time.perf_counter() + seconds, [work()]
    while time.perf_counter() < end and len(times) < MOST:
        times.append(work())
    return times


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _store(database: Database) -> dict[str, Callable[[], float]]:
    def claim(queue: str) -> float:
        """Time of a claim; the run is handed back."""
        began = time.perf_counter()
        with database.transaction() as session:
            claimed = runs.claim(session, Claimant("measuring", (queue,)), LEASE_S)
        took = time.perf_counter() - began
        assert claimed is not None
        with database.transaction() as session:
            runs.release(session, claimed)
        return took

    ended = service_metrics.EndedRuns()

    def metrics() -> float:
        with database.reading() as session:
            return _timed(lambda: service_metrics.snapshot(session, SEEN_S, ended))

    return {
        "claim where all owners wait": lambda: claim("default"),
        "claim where one owner waits": lambda: claim(QUIET),
        "figures of GET /metrics": metrics,
    }


@contextmanager
def _clients(running: Service, filled: Filled) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients with the key of an owner and with one of an operator."""
    base = f"http://127.0.0.1:{running.port}"
    heads = [{"Authorization": f"Bearer {token}"} for token in (filled.tokens[0], filled.admin)]
    with (
        httpx.Client(base_url=base, headers=heads[0], timeout=60, trust_env=False) as user,
        httpx.Client(base_url=base, headers=heads[1], timeout=60, trust_env=False) as admin,
    ):
        yield user, admin


def _get(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - began


def _requests(client: httpx.Client) -> dict[str, Callable[[], float]]:
    finished = _ids(client, f"/v1/experiments?status={Status.SUCCEEDED}&limit=1")[0]
    run = _ids(client, f"/v1/experiments/{finished}/runs?limit=1")[0]
    paths = {
        "list of an owner": "/v1/experiments",
        "list of an owner, by status": f"/v1/experiments?status={Status.SUCCEEDED}",
        "list of an owner, by tag": "/v1/experiments?tag=scale",
        "experiment": f"/v1/experiments/{finished}",
        "results": f"/v1/experiments/{finished}/results",
        "rounds of a run": f"/v1/runs/{run}/metrics",
        "arms of an owner": "/v1/arms",
    }

    def post() -> float:
        # In a queue that no worker serves: what is claimed stays the same.
        spec = SPEC | {"execution": {"queue": "measured"}}
        began = time.perf_counter()
        client.post("/v1/experiments", json=spec).raise_for_status()
        return time.perf_counter() - began

    def events() -> float:
        """Time until the first event of a stream."""
        began = time.perf_counter()
        with client.stream("GET", f"/v1/experiments/{finished}/events") as answer:
            next(answer.iter_raw())
            return time.perf_counter() - began

    return {
        "POST of one run": post,
        **{name: partial(_get, client, path) for name, path in paths.items()},
        "first event of a stream": events,
    }


def _of_all_owners(client: httpx.Client) -> dict[str, Callable[[], float]]:
    paths = {"list of all owners": "/v1/experiments", "queue": "/v1/queue"}
    return {name: partial(_get, client, path) for name, path in paths.items()}


def _ids(client: httpx.Client, path: str) -> Sequence[str]:
    return [item["id"] for item in client.get(path).raise_for_status().json()["items"]]


def _add_column(url: str) -> float:
    """Time of a migration that adds a column with a default, undone afterwards."""
    began = time.perf_counter()
    with migrating(url) as connection:
        column = Column("measured", Integer, nullable=False, server_default="0")
        Operations(MigrationContext.configure(connection)).add_column("run", column)
    took = time.perf_counter() - began
    with migrating(url) as connection:
        Operations(MigrationContext.configure(connection)).drop_column("run", "measured")
    return took
