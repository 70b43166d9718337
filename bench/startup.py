"""Time the start of a run in a warm process: from the specification to a Simulation, and its first
round, for each workload.

Each workload is timed a second time in the same process, like a worker that runs one seed after
another.

    python -m bench startup [--workloads W1,W4]
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from bench import report
from bench.options import HOME, among, command
from bench.workloads import WORKLOADS
from fedcore import Simulation


class Start(NamedTuple):
    """Seconds."""

    ready_s: float
    """Until the Simulation stands before its first round."""
    first_s: float
    """That round."""


def main(arguments: Sequence[str]) -> None:
    """Print a row for each workload, and write the table where requested."""
    parser = command("startup", __doc__)
    parser.add_argument("--workloads", type=among(WORKLOADS), default=list(WORKLOADS), help="W1,W2,...")
    parser.add_argument("--home", type=Path, default=HOME, help="where data lie")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its markers")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.workloads:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cold, warm = pool.apply(measure, (name, options.home))
        rows.append(
            [
                name,
                *(
                    report.significant(1e3 * value)
                    for value in (cold.ready_s, cold.first_s, warm.ready_s, warm.first_s)
                ),
            ]
        )
    text = report.table(
        ("workload", "cold start, ms", "its first round, ms", "warm start, ms", "its first round, ms"), rows
    )
    print(text, flush=True)
    if options.write is not None:
        report.put(options.write, "startup", text)


def measure(name: str, home: Path) -> list[Start]:
    """The first and the second run of this process, which has imported everything."""
    torch.set_num_threads(os.cpu_count() or 1)
    return [_run(name, home / "data", seed) for seed in (0, 1)]


def _run(name: str, data: Path, seed: int) -> Start:
    spec = WORKLOADS[name].spec(data)
    began = time.perf_counter()
    simulation = Simulation(spec, seed, data_dir=data)
    ready = time.perf_counter()
    simulation.advance()
    return Start(ready - began, time.perf_counter() - ready)
