"""A run, the processes that carry it out, and what they suffer."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import nan
from typing import Any

import psutil

from fedcore.platform.store import Status
from fedcore.platform.store.tables import RunRecord
from tests.builders.specifications import merged
from tests.support.forks import Forked, forked
from tests.support.polling import eventually
from tests.workers.deployment import EXPERIMENT, Deployment

END_S = 300.0
ROUNDS_PER_FAULT = 30
"""So long a run is not over before it has suffered all, however slow the machine: throttled, two
rounds are played in a second.
"""
GROUP_FACTOR = 2
"""A group is complete again only some seconds after the run goes on."""
EVERY_S, HELD_UP_S = 0.02, 0.5
"""A look at the run takes milliseconds; one that takes so long was held up."""
_AT_SPEED = 3
_MOMENT_S = 0.6
"""A fault strikes within this time, in which a throttled worker plays a round, saves and commits
it.
"""


@dataclass(frozen=True)
class Fault:
    """One fault, in words, and what it does."""

    name: str
    strike: Callable[["World", RunRecord], float]
    """Returns the moment, by the monotonic clock, from which the run may be expected to recover."""
    takes: bool = True
    """It costs the worker its run."""


class World:
    """Workers and a reconciler on a deployment, started again when they end, and a run.

    All its draws come from one generator. No fault strikes before all workers are there, and the world
    is `ready`.
    """

    def __init__(
        self,
        deployment: Deployment,
        rounds: int,
        draws: random.Random,
        stack: ExitStack,
        *,
        workers: int = 2,
        shards: int | None = None,
        ready: Callable[["World"], bool] = lambda _: True,
    ) -> None:
        self.deployment, self._draws, self.stack, self.shards, self._ready = (
            deployment,
            draws,
            stack,
            shards,
            ready,
        )
        self.passing = stack.enter_context(ExitStack())
        """Closed once the run goes on."""
        self.reconciler = self._start("workers.reconciler", "reconciler")
        self.workers = [
            self._start("tests.workers.throttled_worker", f"worker-{place}") for place in range(workers)
        ]
        self.experiment = deployment.submit(
            merged(EXPERIMENT, {"rounds": rounds, "execution": {"shards": shards}})
        )

    @property
    def run(self) -> RunRecord:
        """The run as it is now."""
        return self.deployment.run(self.experiment)

    def suffer(self, fault: Fault) -> float:
        """The run suffers a fault at a random moment.

        The seconds until a worker takes it up again, or goes on with it, if it kept it.

        Not a number where this process was held up meanwhile, and cannot tell.
        """
        eventually(self._complete, timeout_s=END_S)
        self.deployment.in_the_middle(self.experiment, self.run.done + 1)
        time.sleep(self._draws.uniform(0, _MOMENT_S))
        before = self.run
        assert before.status is Status.RUNNING, before.status
        with self.passing:
            return self._seconds(fault, before)

    def _seconds(self, fault: Fault, before: RunRecord) -> float:
        over = fault.strike(self, before)
        done, least = self.run.done, before.fence + fault.takes
        self.deployment.let_go(done + _AT_SPEED)
        looked, held_up_s = over, 0.0
        deadline = over + END_S
        while not self._goes_on(done, least, taken=fault.takes):
            self.tend()
            assert time.monotonic() < deadline, f"nobody went on with the run: {fault.name}"
            held_up_s, looked = max(held_up_s, time.monotonic() - looked), time.monotonic()
            time.sleep(EVERY_S)
        return time.monotonic() - over if max(held_up_s, time.monotonic() - looked) < HELD_UP_S else nan

    def tend(self) -> None:
        """Start again what has ended."""
        if self.reconciler.poll() is not None:
            self.reconciler = self._start("workers.reconciler", "reconciler")
        for place, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[place] = self._start("tests.workers.throttled_worker", f"worker-{place}")

    def parent(self, run: RunRecord) -> Forked:
        """The worker whose child plays the run."""
        pid = psutil.Process(self.deployment.pid(run)).ppid()
        return next(worker for worker in self.workers if worker.pid == pid)

    def _complete(self) -> bool:
        self.tend()
        present = sum(map(psutil.pid_exists, self.deployment.workers().values()))
        return present >= len(self.workers) and self._ready(self)

    def _goes_on(self, done: int, fence: int, *, taken: bool) -> bool:
        now = self.run
        return now.fence >= fence if taken else now.done > done

    def _start(self, module: str, name: str) -> Forked:
        deployment = self.deployment
        log = deployment.folder / f"{name}-{time.monotonic_ns()}.log"
        return self.stack.enter_context(
            forked(module, log=log, environment=deployment.environment, folder=deployment.folder)
        )


@contextmanager
def world(deployment: Deployment, faults: int, seed: int, **about: Any) -> Iterator[World]:
    """A world whose run is long enough for so many faults; `about` as of `World`."""
    deployment.let_go(0)
    rounds = ROUNDS_PER_FAULT * faults * (GROUP_FACTOR if "shards" in about else 1)
    with ExitStack() as stack:
        yield World(deployment, rounds, random.Random(seed), stack, **about)


def quantiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th percentile (the smallest value that 95 % do not exceed), and maximum."""
    ordered = sorted(seconds)
    return ordered[(len(ordered) - 1) // 2], ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1]
