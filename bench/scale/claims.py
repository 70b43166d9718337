"""Many workers that claim runs, have them for a while and finish them."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sqlalchemy import make_url, select

from bench.load.writer import PROVENANCE, report
from bench.scale.fill import LEASE_S
from fedcore.platform.store import Database, Status, open_database, runs
from fedcore.platform.store.database import POOLED, POOLER
from fedcore.platform.store.leases import Claimant
from fedcore.platform.store.tables import RunRecord
from tests.support.polling import eventually
from tests.support.postgresql import UNPRIVILEGED
from tests.support.processes import served

SERVERS = 20
"""Connections of PgBouncer to PostgreSQL."""
PORT = 6432
"""In the name of PgBouncer's socket."""


@dataclass(frozen=True)
class Claims:
    """Claims of a number of workers, measured together."""

    workers: int
    connections: str
    seconds: list[float]
    """Of each claim."""
    wall_s: float
    by_owner: list[int]
    """Runs claimed of each owner who had runs waiting from beginning to end."""
    by_worker: list[int]
    """Runs claimed by each worker."""


def simulated_claims(url: str, workers: int, run_s: float) -> Iterator[Claims]:
    """Claims of `workers` directly, and through PgBouncer where it is installed, whose runs take `run_s`
    seconds on average.
    """
    yield _claims(url, workers, run_s, f"{workers}, direct")
    if shutil.which("pgbouncer"):
        with _pooler(url, workers) as pooled:
            yield _claims(pooled, workers, run_s, f"{SERVERS}, PgBouncer")


def _claims(url: str, workers: int, run_s: float, connections: str) -> Claims:
    """Let each worker claim and finish one run after another, for twice `run_s` seconds."""
    times: list[float] = []
    by_owner: Counter[str] = Counter()
    by_worker: Counter[int] = Counter(dict.fromkeys(range(workers), 0))
    ready, started = threading.Barrier(workers + 1), threading.Event()
    ended = threading.Event()

    def work(database: Database, number: int) -> None:
        name, rng = f"simulated-{number}", np.random.default_rng(number)
        with database.reading() as session:
            session.execute(select(1))  # connects
        ready.wait()
        started.wait()
        # They have been at work for long, so that not all end at the same moment.
        ended.wait(rng.uniform(0, run_s))
        while not ended.is_set():
            began = time.perf_counter()
            with database.transaction() as session:
                claim = runs.claim(session, Claimant(name, ("default",)), LEASE_S)
            if claim is None:
                return
            times.append(time.perf_counter() - began)
            by_worker[number] += 1
            ended.wait(rng.uniform(0, 2 * run_s))
            with database.transaction() as session:
                # Its seconds are what fair sharing counts.
                runs.commit_slice(
                    session, claim, [report(1)], checkpoint="", lease_s=LEASE_S, provenance=PROVENANCE
                )
                runs.finish(session, claim.at(1, ""), model=None, provenance=PROVENANCE)
                by_owner[runs.find(session, claim.run_id).owner] += 1

    with ExitStack() as stack:
        # Each has as many connections as it has threads, so that each thread has one of its own.
        opened = [stack.enter_context(closing(open_database(url))) for _ in range(-(-workers // POOLED))]
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        working = [pool.submit(work, opened[number // POOLED], number) for number in range(workers)]
        ready.wait()
        began = time.perf_counter()
        started.set()
        ended.wait(2 * run_s)
        wall_s = time.perf_counter() - began
        ended.set()
        for worker in working:
            worker.result()
        with opened[0].reading() as session:
            queued = RunRecord.status == Status.QUEUED, RunRecord.queue == "default"
            owners = set(session.scalars(select(RunRecord.owner).where(*queued).distinct()))
    counts = [by_owner[owner] for owner in owners]
    return Claims(workers, connections, times, wall_s, counts or [0], list(by_worker.values()))


@contextmanager
def _pooler(url: str, clients: int) -> Iterator[str]:
    """A running PgBouncer; the URL of the database through it."""
    parsed = make_url(url)
    with TemporaryDirectory(prefix="fedq-pgb-") as name:
        folder = Path(name)
        users, settings = folder / "users", folder / "pgbouncer.ini"
        users.write_text('"postgres" ""\n')
        settings.write_text(
            f"""[databases]
{parsed.database} = host={parsed.query["host"]} dbname={parsed.database}
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
listen_port = {PORT}
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {SERVERS}
max_client_conn = {clients + 100}
"""
        )
        for path in (folder, users, settings):
            path.chmod(0o755)
            shutil.chown(path, UNPRIVILEGED)
        program = shutil.which("pgbouncer")
        assert program is not None
        with served([program, str(settings)], folder / "log", user=UNPRIVILEGED):
            eventually((folder / f".s.PGSQL.{PORT}").exists)
            query = {"host": str(folder), "port": str(PORT), POOLER: "transaction"}
            yield parsed.set(query=query).render_as_string(hide_password=False)
