"""The phases of the load test, in order, and checks of their results."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from bench.load.asking import Times, checked, flat_out, opened, steadily
from bench.load.follow import Followed
from bench.load.gauge import Gauge
from bench.load.service import Service
from bench.load.wire import Answer, Connection

SPEC: dict[str, Any] = {
    "name": "load",
    "problem": {
        "dataset": {"kind": "digits"},
        "partition": {"kind": "dirichlet", "clients": 30, "alpha": 0.1},
        "model": {"kind": "logistic"},
    },
    "algorithm": {"kind": "fedprox", "mu": 0.1},
    "local": {"lr": 0.1, "epochs": 2, "batch_size": 10},
    "participation": {"kind": "uniform", "clients_per_round": 10},
    "rounds": 20,
}
CONNECTIONS, SWEEP, WRITERS = 32, 1_000, 4
BULK_RUNS, BULK_SLICE = 2, 500
LIVE_RUNS, LIVE_SLICE, EVERY_S, POLL_S = 5, 5, 0.5, 1.0
SETTLE_S = 1.0
"""Until all who follow have been told how things stand."""
EACH = 10
"""Pollers and followers of a run."""


class Trial:
    """One service, and all requests made to it so far. Changes in place."""

    def __init__(self, service: Service, seconds: float) -> None:
        self._service, self._seconds, self._gauge = service, seconds, Gauge(service)
        self._connections: list[Connection] = []
        self.experiments: dict[str, int] = {}
        """Those answered with 201, and their runs."""
        self.rows: dict[str, int] = {}
        """Rows that were committed, by run."""

    async def play(self, backlog: int) -> list[list[str]]:
        """Run all phases; returns a row of the table for each."""
        self._connections = await opened(self._service, CONNECTIONS)
        rows = [
            await self._fill(backlog),
            await self._post(),
            await self._get(),
            await self._bulk(),
            *await self._together(),
        ]
        self._service.verify(self.experiments, self.rows)
        return rows

    async def _submit(self, connection: Connection, **changes: Any) -> Answer:
        spec = SPEC | changes
        answer = checked(await connection.post("/v1/experiments", json.dumps(spec).encode()), 201)
        self.experiments[json.loads(answer.body)["id"]] = len(spec.get("seeds", [0]))
        return answer

    async def _fill(self, backlog: int) -> list[str]:
        waiting, times, began = backlog, list[float](), time.perf_counter()
        while waiting > 0:
            seeds = list(range(min(SWEEP, waiting)))
            times.append(
                (await self._submit(self._connections[len(times) % CONNECTIONS], seeds=seeds)).seconds
            )
            waiting -= len(seeds)
        return self._gauge.row(
            f"POST of {SWEEP} runs, one at a time", Times(times, time.perf_counter() - began)
        )

    async def _post(self) -> list[str]:
        times = await flat_out(self._connections, self._seconds, self._submit)
        return self._gauge.row("POST of one run", times)

    async def _get(self) -> list[str]:
        owned = await asyncio.gather(*(_newest(connection) for connection in self._connections))
        paths = {connection: cycle(ids) for connection, ids in zip(self._connections, owned, strict=True)}
        self._gauge.reset()

        async def read(connection: Connection) -> Answer:
            return checked(await connection.get(f"/v1/experiments/{next(paths[connection])}"), 200)

        return self._gauge.row("GET of an experiment", await flat_out(self._connections, self._seconds, read))

    async def _bulk(self) -> list[str]:
        rounds = BULK_SLICE * max(1, round(self._seconds * 2))
        await self._runs("bulk", WRITERS * BULK_RUNS, rounds)
        writers = await self._writers("bulk", BULK_RUNS, rounds, BULK_SLICE, 0.0)
        self._gauge.reset()
        written = await _written(writers)
        took = max(one["ended"] for one in written) - min(one["began"] for one in written)
        count = WRITERS * BULK_RUNS * rounds
        return self._gauge.row("rows, in slices of 500", Times([], took), f"{count / took:,.0f}")

    async def _together(self) -> list[list[str]]:
        rounds = LIVE_SLICE * max(1, round(self._seconds / EVERY_S))
        runs = await self._runs("live", WRITERS * LIVE_RUNS, rounds)
        writers = await self._writers("live", LIVE_RUNS, rounds, LIVE_SLICE, EVERY_S)
        # A run's owner is its place, and the owners' keys go round.
        pollers = list(
            zip(
                await opened(self._service, EACH * len(runs)),
                [run_id for _, run_id in EACH * runs],
                strict=True,
            )
        )
        followers = zip(await opened(self._service, EACH * len(runs)), EACH * runs, strict=True)
        following = [
            (run_id, asyncio.create_task(_follow(follower, experiment_id)))
            for follower, (experiment_id, run_id) in followers
        ]
        await asyncio.sleep(SETTLE_S)
        self._gauge.reset()
        asked = [(connection, f"/v1/runs/{run_id}/metrics") for connection, run_id in pollers]
        times, written = await asyncio.gather(steadily(asked, self._seconds, POLL_S), _written(writers))
        delays = _delays(written, [(run_id, await followed) for run_id, followed in following], rounds)
        took = max(one["ended"] for one in written) - min(one["began"] for one in written)
        return [
            self._gauge.row("together: 200 poll", times, keep=True),
            self._gauge.row("together: events to 200 who follow", Times(delays, took)),
        ]

    async def _runs(self, queue: str, count: int, rounds: int) -> list[tuple[str, str]]:
        """New experiments of one run each: the ids of both.

        The one with place `n` belongs to the owner with place `n`.
        """
        made = []
        for place in range(count):
            connection = self._connections[place]
            answer = await self._submit(connection, rounds=rounds, execution={"queue": queue})
            experiment_id = json.loads(answer.body)["id"]
            (run,) = json.loads((await connection.get(f"/v1/experiments/{experiment_id}/runs")).body)["items"]
            made.append((experiment_id, run["id"]))
            self.rows[run["id"]] = rounds
        return made

    async def _writers(self, *arguments: object) -> list[Process]:
        command = (
            sys.executable,
            "-m",
            "bench.load.writer",
            self._service.database_url,
            *map(str, arguments),
        )
        writers = [
            await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE) for _ in range(WRITERS)
        ]
        for writer in writers:
            assert writer.stdout is not None
            await writer.stdout.readline()
        return writers


async def _newest(connection: Connection) -> Sequence[str]:
    page = json.loads(checked(await connection.get("/v1/experiments?limit=50"), 200).body)
    return [item["id"] for item in page["items"] if item["progress"]["rounds_total"] < SWEEP]


async def _written(writers: Sequence[Process]) -> list[dict[str, Any]]:
    """Let the writers write; returns their reports."""
    said = await asyncio.gather(*(writer.communicate(b"go\n") for writer in writers))
    return [json.loads(output) for output, _ in said]


async def _follow(connection: Connection, experiment_id: str) -> Followed:
    followed = Followed()
    connection.listener = followed.feed
    checked(await connection.get(f"/v1/experiments/{experiment_id}/events"), 200)
    return followed


def _delays(
    written: Sequence[dict[str, Any]], followed: Sequence[tuple[str, Followed]], rounds: int
) -> list[float]:
    """Seconds from before each commit until each of its rows came to each follower.

    Raises RuntimeError where one was missed.
    """
    committed: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for run_id, done, at in (commit for one in written for commit in one["commits"]):
        first = max(committed[run_id], default=0) + 1
        committed[run_id] |= dict.fromkeys(range(first, done + 1), at)
    for run_id, one in followed:
        if [(run, round) for run, round, _ in one.events] != [
            (run_id, round) for round in range(1, rounds + 1)
        ]:
            raise RuntimeError(
                f"a follower of {run_id} was not told each round once and in order: {one.events}"
            )
    return [at - committed[run_id][round] for _, one in followed for run_id, round, at in one.events]
