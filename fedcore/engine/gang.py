"""The training of a gang: rounds of several runs, by one call of each engine."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from fedcore.engine.assignment import Engine, Job, Result
from fedcore.engine.round import Opened


class Trained(NamedTuple):
    """What came of the training in one round of one run."""

    result: Result | None = None
    """None where nobody reached the server."""
    seconds: float = 0.0
    """The run's share of the time, by its local steps."""
    together: int = 1
    """How many runs the engine was given, this one among them."""


def train(rounds: Sequence[Opened]) -> list[Trained]:
    """Train those together that have the same engine; in the order of `rounds`."""
    trained = [Trained()] * len(rounds)
    wanted: dict[Engine, list[tuple[int, Job]]] = {}
    for index, opened in enumerate(rounds):
        if (job := opened.job) is not None:
            wanted.setdefault(opened.setting.engine, []).append((index, job))
    for engine, members in wanted.items():
        indices, jobs = zip(*members, strict=True)
        for index, result in zip(indices, _train(engine, jobs), strict=True):
            trained[index] = result
    return trained


def _train(engine: Engine, jobs: Sequence[Job]) -> list[Trained]:
    began = time.perf_counter()
    results = engine(jobs)
    seconds, steps = time.perf_counter() - began, [int(job.assignment.steps.sum()) for job in jobs]
    return [Trained(result, seconds * own / sum(steps), len(jobs)) for result, own in zip(results, steps, strict=True)]
