"""Measure the service: its overhead on a run, the time to the first row, and the cost of its API
process.

- Overhead: a run of half a minute on an embedded stack with one worker, from before its POST until
  its end can be read, over the same run by `fedcore` alone in one process; in turn (A B A B ...), a
  ratio for each pair.
- First row: from the answer to a POST until the row of round 1 can be read, on an idle stack.
- API process: from its start until it answers, and its memory then.

    python -m bench service [--pairs 3] [--rounds 2400] [--posts 20] [--starts 5]
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from bench.options import command
from fedcore import ExperimentSpec
from fedcore.platform.access import Scope
from fedcore.platform.store import keys, open_database, upgrade
from fedcore.presets import load
from fedq.client import Client
from fedq.embedded import embedded_service
from workers.embedded.stack import API

LOOK_S = 0.005
START_S = 30.0


def main(arguments: Sequence[str]) -> None:
    """Measure all three and print them."""
    parser = command("service", __doc__)
    parser.add_argument(
        "--pairs", type=int, default=3, help="pairs of one run through the service and one without"
    )
    parser.add_argument("--rounds", type=int, default=2_400, help="rounds of such a run")
    parser.add_argument("--posts", type=int, default=20, help="experiments whose first row is waited for")
    parser.add_argument("--starts", type=int, default=5, help="starts of the API process")
    options = parser.parse_args(arguments)
    with embedded_service(workers=1) as (url, key), Client(url, key) as client:
        _print_first_row([first_row_s(client) for _ in range(options.posts)])
        _print_overhead([_pair(client, _one_run(options.rounds)) for _ in range(options.pairs)])
    _print_api([api_start() for _ in range(options.starts)])


def _one_run(rounds: int) -> ExperimentSpec:
    """FedAvg of the preset `demo` with a single seed."""
    return ExperimentSpec.model_validate(
        load("demo").spec | {"name": "bench", "rounds": rounds, "seeds": [0], "sweep": {}}
    )


def _pair(client: Client, spec: ExperimentSpec) -> tuple[float, float]:
    """Seconds through the service, and alone."""
    began = time.perf_counter()
    ended = client.wait(client.submit(spec).id)
    through = time.perf_counter() - began
    assert ended.status == "succeeded", ended
    return through, _alone(spec)


def _alone(spec: ExperimentSpec) -> float:
    """Run it with the library, in a process that has loaded it and played a first round, as a warm
    worker has.
    """
    program = (sys.executable, "-m", "bench.alone")
    done = subprocess.run(program, input=spec.model_dump_json(), capture_output=True, check=True, text=True)  # noqa: S603 - our own
    return float(done.stdout)


def first_row_s(client: Client) -> float:
    """Seconds from the answer to a POST until the first row can be read."""
    experiment = client.submit(_one_run(rounds=3))
    began = time.perf_counter()
    (run,) = client.runs(experiment.id)
    while not list(client.rounds(run.id)):
        time.sleep(LOOK_S)
    seconds = time.perf_counter() - began
    client.wait(experiment.id)
    return seconds


class Start(NamedTuple):
    """Start of an API process, until it answers."""

    seconds: float
    processor_s: float
    bytes: int
    """Memory then, as proportional set size."""


def api_start() -> Start:
    """Start an API process, have it answer once, and end it."""
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as listener:
        database_url = f"sqlite:///{Path(home, 'fedq.db')}"
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        upgrade(database_url)
        with open_database(database_url).transaction() as session:
            _, key = keys.create(session, owner="bench", scope=Scope.READ)
        command = (*API, f"--fd={listener.fileno()}")
        began = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603 - our own
            command,
            env=os.environ | {"FEDQ_HOME": home, "FEDQ_LOG_LEVEL": "warning"},
            pass_fds=(listener.fileno(),),
            stdout=subprocess.DEVNULL,
        )
        try:
            # The listener is open already: the request waits until the process answers.
            url, headers = (
                f"http://127.0.0.1:{listener.getsockname()[1]}/v1/experiments",
                {"Authorization": f"Bearer {key.text}"},
            )
            httpx.get(url, headers=headers, timeout=START_S, trust_env=False).raise_for_status()
            seconds, started = time.perf_counter() - began, psutil.Process(process.pid)
            return Start(seconds, sum(started.cpu_times()[:2]), started.memory_full_info().pss)
        finally:
            process.terminate()
            process.wait()


def _print_first_row(seconds: Sequence[float]) -> None:
    first, *warm = seconds
    print(f"first row after a POST, s: {_median(warm, '.2f')}; in the first run of the stack {first:.2f}")


def _print_overhead(pairs: Sequence[tuple[float, float]]) -> None:
    alone = [alone for _, alone in pairs]
    print(f"a run alone, s: {_median(alone, '.1f')}")
    print(
        f"through the service, times as long: {_median([through / alone for through, alone in pairs], '.3f')}"
    )


def _print_api(starts: Sequence[Start]) -> None:
    print(f"API process answers after, s: {_median([start.seconds for start in starts], '.2f')}")
    print(f"API process, MB: {_median([start.bytes / 1e6 for start in starts], '.0f')}")


def _median(values: Sequence[float], form: str) -> str:
    return (
        f"median {statistics.median(values):{form}} (min {min(values):{form}}, max {max(values):{form}},"
        f" {len(values)} times)"
    )
