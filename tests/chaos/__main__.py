"""Runs that suffer, on servers of their own: what comes of them is compared to the bit, and how
soon they recover is reported.

    python -m tests.chaos [--parts kills,groups,faults,storage,defaults,embedded,api,hangs,changes]
    [--seed 0] [--kills 50] [--write docs/operations.md]

- kills: one run loses its worker so many times, under a short lease: at random moments, in a
  checkpoint, in a commit, parent and child.
- groups: one run in shards, which three workers train, loses members and leaders as often: they are
  killed, stopped, and cut off from one another.
- faults: one run suffers all else once, the broker and the database away for a minute among it, and
  brokers that are slow.
- storage: one run whose files are in S3 goes on while the store fails in turn in all ways; then its
  experiment is archived, file by file, while it fails every other request.
- defaults: five kills under the settings that everybody has.
- embedded: ten kills on SQLite and Valkey.
- api: clients submit without a pause while the API is killed ten times, and replaced five times, of
  which they must notice nothing.
- hangs: clients submit to the embedded stack while its processes are stopped (SIGSTOP) one after
  another, to be replaced by its supervisor.
- changes: clients cancel, pause, resume, extend, retry and delete the same experiments at once, under
  kills and cut connections; rows, counters, quotas and files are counted again at the end.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from sqlalchemy import make_url

from bench.report import put, table
from fedcore.platform.store import open_database, upgrade
from tests.chaos.callers import END_S, calling, calling_at
from tests.chaos.changes import change_at_once
from tests.chaos.faults import KILLS, LONG, OTHERS, at_the_server
from tests.chaos.groups import GROUPS, SHARDS, WORKERS, in_group
from tests.chaos.messages import assert_unmoved
from tests.chaos.storage import assert_archived, storage_faults
from tests.chaos.world import Fault, quantiles, world
from tests.support.brokers import broker
from tests.support.polling import eventually
from tests.support.postgresql import postgresql
from tests.support.s3 import s3_server
from tests.workers.deployment import Deployment, assert_undisturbed
from tests.workers.embedded_stacks import running_stack

LAST_ROUNDS_S = 300.0
LEASE_S, DEFAULT_LEASE_S, DEFAULT_KILLS, EMBEDDED_KILLS = 2.0, 10.0, 5, 10
API_KILLS, API_REPLACEMENTS = 10, 5
HANGS = {"api": 3, "reconciler": 1, "worker-1": 1, "broker": 1}
"""How often each process of the embedded stack is stopped."""
REQUESTS, STRIKES = 800, 12
"""Of clients that change experiments, and of faults meanwhile."""
GOAL_S = 2.0
"""Beyond the lease, at the 95th percentile."""
HEADINGS = ("what happens", "lease, s", "times", "median, s", "p95, s", "longest, s")

Row = tuple[str, ...]


def main() -> None:
    """Let runs suffer, and report; exits 1 where a goal was missed."""
    options = _parser().parse_args()
    draws = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    began, rows, reached = time.monotonic(), list[Row](), True
    for part in options.parts.split(","):
        more, well = PARTS[part](options.kills, draws)
        rows, reached = rows + more, reached and well
    minutes, command = (time.monotonic() - began) / 60, " ".join(["python -m tests.chaos", *sys.argv[1:]])
    said = (
        f"Every run ended in the rows and the model of an undisturbed one, to the bit. `{command}`, seed"
        f" {options.seed}, {minutes:.0f} min."
    )
    text = f"{said}\n\n{table(HEADINGS, rows)}"
    print(text)
    if options.write:
        put(options.write, "recovery", text)
    sys.exit(not reached)


def _kills(count: int, draws: random.Random) -> tuple[list[Row], bool]:
    took = _suffered(_mixed(KILLS, count, draws), draws, lease_seconds=LEASE_S)
    together = [seconds for _, seconds in took]
    rows = [*_by_kind(KILLS, took), _row("**all of these**", LEASE_S, together)]
    return rows, _reached(together, LEASE_S)


def _groups(count: int, draws: random.Random) -> tuple[list[Row], bool]:
    about = {"workers": WORKERS, "shards": SHARDS, "ready": in_group}
    took = _suffered(_mixed(GROUPS, count, draws), draws, about, lease_seconds=LEASE_S)
    return _by_kind(GROUPS, took), True


def _mixed(kinds: Sequence[Fault], count: int, draws: random.Random) -> list[Fault]:
    """So many faults of these kinds, about equally often, in any order."""
    faults = [kinds[place % len(kinds)] for place in range(count)]
    draws.shuffle(faults)
    return faults


def _by_kind(kinds: Sequence[Fault], took: Sequence[tuple[Fault, float]]) -> list[Row]:
    seconds = {kind: [seconds for fault, seconds in took if fault is kind] for kind in kinds}
    return [_row(kind.name, LEASE_S, seconds[kind]) for kind in kinds if seconds[kind]]


def _faults(_: int, draws: random.Random) -> tuple[list[Row], bool]:
    took = _suffered([*OTHERS, *LONG], draws, lease_seconds=LEASE_S)
    return [_row(fault.name, LEASE_S, [seconds]) for fault, seconds in took], True


def _storage(_: int, draws: random.Random) -> tuple[list[Row], bool]:
    with s3_server() as store:
        os.environ.update(store.environment)
        bucket = store.bucket()
        took = _suffered(
            _mixed(faults := storage_faults(store), len(faults), draws),
            draws,
            afterwards=lambda deployment: assert_archived(deployment, store, bucket),
            lease_seconds=LEASE_S,
            storage_url=f"s3://{bucket}",
        )
    return _by_kind(faults, took), True


def _defaults(_: int, draws: random.Random) -> tuple[list[Row], bool]:
    took = [
        seconds
        for _, seconds in _suffered(
            KILLS[:1] * DEFAULT_KILLS, draws, slice_seconds=2.0, lease_seconds=DEFAULT_LEASE_S
        )
    ]
    return [_row(f"{KILLS[0].name}, under default settings", DEFAULT_LEASE_S, took)], _reached(
        took, DEFAULT_LEASE_S
    )


def _embedded(_: int, draws: random.Random) -> tuple[list[Row], bool]:
    took = [
        seconds
        for _, seconds in _suffered(KILLS[:1] * EMBEDDED_KILLS, draws, embedded=True, lease_seconds=LEASE_S)
    ]
    return [_row(f"{KILLS[0].name}, on SQLite and Valkey", LEASE_S, took)], _reached(took, LEASE_S)


def _api(_: int, draws: random.Random) -> tuple[list[Row], bool]:
    """Seconds until something that was asked for after the kill is acknowledged.

    Of a replacement, until the process before has ended.
    """
    kills, replacements = list[float](), list[float]()
    with _deployment() as deployment, calling(deployment) as (gate, callers):
        for _number in range(API_KILLS):
            time.sleep(draws.uniform(0, 1))
            killed = time.monotonic()
            gate.kill()
            eventually(partial(callers.served_after, killed), timeout_s=END_S)
            kills.append(time.monotonic() - killed)
        failures = callers.failures
        for _number in range(API_REPLACEMENTS):
            began = time.monotonic()
            gate.replace()
            replacements.append(time.monotonic() - began)
        assert callers.failures == failures, "a client noticed that the API was replaced"
    print(f"{len(callers.acknowledged)} submissions, none lost, none made twice", flush=True)
    return [
        _row("the API is killed, and started again", None, kills),
        _row("the API is replaced under load", None, replacements),
    ], True


def _hangs(_: int, draws: random.Random) -> tuple[list[Row], bool]:
    """Seconds until another process is there, and something that was asked for after the stop is
    acknowledged.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder, running_stack(Path(folder)) as stack, ExitStack() as open_:
        database = open_.enter_context(closing(open_database(f"sqlite:///{stack.home / 'fedq.db'}")))
        callers = open_.enter_context(calling_at(stack.url, stack.key, database))
        for name, count in HANGS.items():
            took = []
            for _number in range(count):
                time.sleep(draws.uniform(0, 1))
                pid, stopped = eventually(partial(stack.pid, name), timeout_s=END_S), time.monotonic()
                os.kill(pid, signal.SIGSTOP)
                eventually(partial(stack.replaced, name, pid), timeout_s=END_S)
                eventually(partial(callers.served_after, stopped), timeout_s=END_S)
                took.append(time.monotonic() - stopped)
                print(f"{took[-1]:6.2f} s  `fedq up`: {name} stops", flush=True)
            rows.append(_row(f"`fedq up`: {name} stops, and is replaced", None, took))
    return rows, True


def _changes(_: int, draws: random.Random) -> tuple[list[Row], bool]:
    with _deployment() as plain:
        deployment = plain.with_settings(lease_seconds=LEASE_S)
        actors = change_at_once(deployment, REQUESTS, STRIKES, draws.randrange(2**32), print)
    went = f"{sum(actors.done.values())} requests, {sum(actors.refused.values())} refused"
    print(f"{went}, {actors.away} without an answer: {dict(actors.done)}", flush=True)
    return [], True


PARTS: dict[str, Callable[[int, random.Random], tuple[list[Row], bool]]] = {
    "kills": _kills,
    "groups": _groups,
    "faults": _faults,
    "storage": _storage,
    "defaults": _defaults,
    "embedded": _embedded,
    "api": _api,
    "hangs": _hangs,
    "changes": _changes,
}


def _suffered(
    faults: Sequence[Fault],
    draws: random.Random,
    about: Mapping[str, Any] = MappingProxyType({}),
    *,
    embedded: bool = False,
    afterwards: Callable[[Deployment], None] = lambda _: None,
    **settings: float | str,
) -> list[tuple[Fault, float]]:
    """One run suffers the faults in turn; each, and the seconds until the run went on."""
    took = []
    with (
        _deployment(embedded=embedded) as plain,
        world(plain.with_settings(**settings), len(faults), draws.randrange(2**32), **about) as suffering,
    ):
        for fault in faults:
            took.append((fault, suffering.suffer(fault)))
            print(f"{took[-1][1]:6.2f} s  {fault.name}", flush=True)
        (run,) = suffering.deployment.ended(suffering.experiment, LAST_ROUNDS_S)
        assert_undisturbed(suffering.deployment, run, suffering.shards)
        assert_unmoved(suffering)
        afterwards(suffering.deployment)
    return took


@contextmanager
def _deployment(*, embedded: bool = False) -> Iterator[Deployment]:
    """A deployment as a production has it, on servers of its own, or as the embedded stack does."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        database_url = f"sqlite:///{folder}/fedq.db" if embedded else servers.enter_context(_database())
        broker_url = servers.enter_context(broker("valkey" if embedded else "redis"))
        upgrade(database_url)
        own = {
            "HOME": folder,
            "DATABASE_URL": database_url,
            "BROKER_URL": broker_url,
            "STORAGE_URL": f"{folder}/storage",
        }
        environment = {f"FEDQ_{name}": value for name, value in own.items()} | {
            "PYTHONPATH": os.pathsep.join(sys.path)
        }
        database = open_database(database_url)
        yield Deployment(
            database, broker_url, os.environ | environment | {"FEDQ_SLICE_SECONDS": "0.1"}, Path(folder)
        )
        database.close()


@contextmanager
def _database() -> Iterator[str]:
    """The URL of an empty database beside the maintenance database.

    It goes with its server, which may be another by then.
    """
    with postgresql() as server:
        with closing(at_the_server(make_url(server))) as maintenance:
            maintenance.execute("CREATE DATABASE fedq")
        yield make_url(server).set(database="fedq").render_as_string(hide_password=False)


def _row(name: str, lease_s: float | None, seconds: Sequence[float]) -> Row:
    known = [value for value in seconds if not isnan(value)]
    return (
        name,
        "" if lease_s is None else f"{lease_s:g}",
        str(len(seconds)),
        *(f"{value:.1f}" for value in (quantiles(known) if known else ())),
    )


def _reached(seconds: Sequence[float], lease_s: float) -> bool:
    return quantiles([value for value in seconds if not isnan(value)])[1] <= lease_s + GOAL_S


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="which of them (default: %(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10**6),
        help="of all draws (default: a new one, which is printed)",
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=50,
        help="number of faults of each of the first two parts (default: %(default)s)",
    )
    parser.add_argument("--write", type=Path, help="put the table into this page")
    return parser


if __name__ == "__main__":
    main()
