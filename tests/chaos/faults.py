"""Faults that can happen to a run: each strikes real processes and servers, and none needs a hook
in the product.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
from sqlalchemy import URL

from fedcore.platform.store.tables import RunRecord
from tests.chaos.messages import late_messages, slow_broker
from tests.chaos.world import END_S, Fault, World
from tests.support.brokers import connect, serving_on
from tests.support.freezing import wait_until_still
from tests.support.polling import eventually
from tests.support.processes import served

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
HELD_UP = "SELECT pid FROM pg_locks WHERE relation = 'block'::regclass AND NOT granted"


def at_the_server(url: URL) -> psycopg.Connection:
    """A connection of an administrator to a database of PostgreSQL."""
    return psycopg.connect(
        url.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True
    )


def _worker(world: World, run: RunRecord) -> float:
    world.deployment.send(run, signal.SIGKILL)
    return time.monotonic()


def _in_a_checkpoint(world: World, run: RunRecord) -> float:
    """Stop it whenever a file is half written, and kill it where it still is."""
    pid, folder = world.deployment.pid(run), Path(world.deployment.environment["FEDQ_STORAGE_URL"], run.id)

    def half_written() -> bool:
        return any(folder.glob(".*.partial"))

    while True:
        world.deployment.let_go(world.run.done + 1)
        eventually(half_written, timeout_s=END_S, every_s=0.0005)
        os.kill(pid, signal.SIGSTOP)
        wait_until_still(pid)
        if half_written():
            os.kill(pid, signal.SIGKILL)
            return time.monotonic()
        os.kill(pid, signal.SIGCONT)


def _in_a_commit(world: World, run: RunRecord) -> float:
    """Whoever commits a slice has written to the run, and waits for the lock on the rounds: then it
    is killed.
    """
    with closing(at_the_server(world.deployment.database.url)) as server, server.transaction():
        server.execute("LOCK TABLE block IN SHARE MODE")
        world.deployment.let_go(world.run.done + 1)
        eventually(lambda: server.execute(HELD_UP).fetchone(), timeout_s=END_S)
        return _worker(world, run)


def _parent(world: World, run: RunRecord) -> float:
    world.parent(run).kill()
    return time.monotonic()


def _all_workers(world: World, _: RunRecord) -> float:
    for worker in world.workers:
        worker.kill()
    return time.monotonic()


def _with_reconciler(world: World, run: RunRecord) -> float:
    world.reconciler.kill()
    _worker(world, run)
    return time.monotonic()


def _stopped(world: World, run: RunRecord) -> float:
    """Its parent kills it after a while; or in the middle of a write, nobody could go on."""
    world.deployment.send(run, signal.SIGSTOP)
    return time.monotonic()


def _asked_to_end(world: World, run: RunRecord) -> float:
    worker = world.parent(run)
    worker.terminate()
    assert worker.wait(END_S) == 0
    return time.monotonic()


def _emptied_broker(world: World, run: RunRecord) -> float:
    with connect(world.deployment.broker_url) as broker:
        broker.flushdb()
    return _worker(world, run)


def _restarted_broker(world: World, run: RunRecord) -> float:
    with connect(world.deployment.broker_url) as broker:
        pid = int(broker.info("server")["process_id"])
    _end(pid, signal.SIGKILL)
    _worker(world, run)
    world.stack.enter_context(
        serving_on(Path(world.deployment.broker_url.removeprefix("redis+socket://")), "redis")
    )
    return time.monotonic()


def _hanging_broker(for_s: float) -> Callable[[World, RunRecord], float]:
    def strike(world: World, run: RunRecord) -> float:
        with connect(world.deployment.broker_url) as broker:
            pid = int(broker.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        _worker(world, run)
        time.sleep(for_s)
        os.kill(pid, signal.SIGCONT)
        return time.monotonic()

    return strike


def _cut_connections(world: World, _: RunRecord) -> float:
    with closing(at_the_server(world.deployment.database.url)) as server:
        server.execute(CUT, (world.deployment.database.url.database,))
    return time.monotonic()


def _database_away(for_s: float) -> Callable[[World, RunRecord], float]:
    def strike(world: World, _: RunRecord) -> float:
        url, until = world.deployment.database.url, time.monotonic() + for_s
        with closing(at_the_server(url.set(database="postgres"))) as beside:
            beside.execute(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS false')
            while time.monotonic() < until:
                beside.execute(CUT, (url.database,))
                time.sleep(0.2)
            beside.execute(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS true')
        return time.monotonic()

    return strike


def _restarted_database(world: World, _: RunRecord) -> float:
    """An immediate shutdown, as in a crash: the server comes back from its log."""
    with closing(at_the_server(world.deployment.database.url)) as server:
        (folder,) = server.execute("SHOW data_directory").fetchone() or ("",)
    server_process = psutil.Process(int(Path(folder, "postmaster.pid").read_text().split()[0]))
    command, home, user = server_process.cmdline(), server_process.cwd(), server_process.uids().real
    group = server_process.gids().real
    _end(server_process.pid, signal.SIGQUIT)
    own = {"user": user, "group": group, "extra_groups": []} if os.geteuid() == 0 else {}
    world.stack.enter_context(
        served(command, world.deployment.folder / "postgresql.log", stop=signal.SIGINT, cwd=home, **own)
    )
    eventually(lambda: _answers(world.deployment.database.url), timeout_s=END_S)
    return time.monotonic()


def _answers(url: URL) -> bool:
    try:
        at_the_server(url).close()
    except psycopg.OperationalError:
        return False
    return True


def _end(pid: int, signum: signal.Signals) -> None:
    process = psutil.Process(pid)
    os.kill(pid, signum)
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, timeout_s=END_S)


KILLS = (
    Fault("a worker's process is killed", _worker),
    Fault("killed while it writes a checkpoint", _in_a_checkpoint),
    Fault("killed within the transaction of a slice", _in_a_commit),
    Fault("a worker is killed, parent and child", _parent),
)
"""A worker is gone, and another there."""
OTHERS = (
    Fault("a worker and the only reconciler are killed, and started again", _with_reconciler),
    Fault("all workers are killed, and started again", _all_workers),
    Fault("a worker's process stops, and goes on no more", _stopped),
    Fault("a worker is asked to end, and another started", _asked_to_end),
    Fault("killed while the broker is emptied", _emptied_broker),
    Fault("killed while the broker takes 0.2 s for each answer", slow_broker(0.2)),
    Fault("killed, and wake-ups come twice, out of order and hours late", late_messages),
    Fault("all connections to the database are cut", _cut_connections, takes=False),
    Fault("the database is away for 2 s", _database_away(2.0), takes=False),
)
"""Faults that are cheap on servers that others use too."""
LONG = (
    Fault("killed together with the broker, which comes back empty", _restarted_broker),
    Fault("killed while the broker hangs for a minute", _hanging_broker(60.0)),
    Fault("killed while the broker takes 1.5 s for each answer", slow_broker(1.5)),
    Fault("killed while the broker's answers drip, 8 bytes in 0.3 s", slow_broker(0.3, at_once=8)),
    Fault("killed while the broker takes 5 s for each answer, for a minute", slow_broker(5.0, for_s=60.0)),
    Fault("PostgreSQL is stopped at once, and started again", _restarted_database, takes=False),
    Fault("the database is away for 65 s, longer than workers wait", _database_away(65.0), takes=False),
)
"""Faults that need servers of one's own, or time."""
