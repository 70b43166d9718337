"""Concurrent requests, and their times."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from bench.load.service import Service
from bench.load.wire import Answer, Connection

Asking = Callable[[Connection], Awaitable[Answer]]


class Times(NamedTuple):
    """Times of one kind of request."""

    seconds: list[float]
    """From request to answer, each."""
    wall_s: float
    """That all took."""

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.wall_s

    def milliseconds(self, share: float) -> float:
        """Return the quantile `share` of the times, in milliseconds."""
        return 1e3 * quantile(self.seconds, share)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


async def opened(service: Service, count: int) -> list[Connection]:
    """Open `count` connections, with the owners' keys in turn."""
    connections = [
        Connection(service.port, service.keys[number % len(service.keys)]) for number in range(count)
    ]
    for connection in connections:
        await connection.open()
    return connections


async def flat_out(connections: Sequence[Connection], seconds: float, ask: Asking) -> Times:
    """Let each connection ask again as soon as it is answered."""
    end, times = time.perf_counter() + seconds, list[float]()

    async def one(connection: Connection) -> None:
        while time.perf_counter() < end:
            times.append((await ask(connection)).seconds)

    began = time.perf_counter()
    await asyncio.gather(*(one(connection) for connection in connections))
    return Times(times, time.perf_counter() - began)


def checked(answer: Answer, status: int) -> Answer:
    """Return the answer, which must have this status."""
    if answer.status != status:
        raise RuntimeError(f"answered with {answer.status}, not {status}: {answer.body[:500]!r}")
    return answer


async def steadily(asked: Sequence[tuple[Connection, str]], seconds: float, every_s: float) -> Times:
    """Let each connection ask periodically for new rows of its run, the first requests spread over
    a period.
    """
    times, began = list[float](), time.perf_counter()

    async def one(place: int, connection: Connection, path: str) -> None:
        after, due = 0, began + every_s * place / len(asked)
        while due < began + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answer = checked(await connection.get(f"{path}?cursor={after}"), 200)
            after = json.loads(answer.body)["next"]
            times.append(time.perf_counter() - due)
            due += every_s

    await asyncio.gather(*(one(place, connection, path) for place, (connection, path) in enumerate(asked)))
    return Times(times, time.perf_counter() - began)
