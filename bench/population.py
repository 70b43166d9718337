"""How the time of a round grows with the number of clients, the cohort being the same: softmax
regression, 100 clients of 5 samples.

Each population is measured in a process of its own, for an algorithm whose clients keep nothing and
one whose clients keep a vector.

    python -m bench population [--clients 1000,1000000] [--algorithms fedavg,scaffold] [--rounds 30]
    [--write PAGE]
"""

import multiprocessing
import os
import resource
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bench import report
from bench.generated import images
from bench.options import HOME, command
from bench.workloads import Workload
from fedcore import Simulation

SAMPLES = 5
HEADINGS = ("algorithm", "clients", "a round, ms", "start, s", "checkpoint, kB", "peak memory, MB")


class Cost(NamedTuple):
    """Cost of one population."""

    start_s: float
    rounds_s: list[float]
    checkpoint_bytes: int
    peak_bytes: int
    """Of the whole process, its libraries included."""


def main(arguments: Sequence[str]) -> None:
    """Print a row for each population, and write the table where requested."""
    parser = command("population", __doc__)
    parser.add_argument(
        "--clients",
        type=_numbers,
        default=[1_000, 10_000, 100_000, 1_000_000],
        help="populations, separated by commas",
    )
    parser.add_argument(
        "--algorithms", type=_names, default=["fedavg", "scaffold"], help="separated by commas"
    )
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds of each")
    parser.add_argument("--home", type=Path, default=HOME, help="where data lie")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its markers")
    options = parser.parse_args(arguments)
    rows = []
    for algorithm, clients in product(options.algorithms, options.clients):
        with multiprocessing.get_context("spawn").Pool(
            1, torch.set_num_threads, (os.cpu_count() or 1,)
        ) as pool:
            rows.append(
                _row(
                    algorithm,
                    clients,
                    pool.apply(measure, (clients, options.rounds, options.home, algorithm)),
                )
            )
    text = report.table(HEADINGS, rows)
    print(text, flush=True)
    if options.write is not None:
        report.put(options.write, "population", text)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")


def _row(algorithm: str, clients: int, cost: Cost) -> list[str]:
    rounds = report.numbers([1e3 * seconds for seconds in cost.rounds_s])
    sizes = [f"{cost.checkpoint_bytes / 1e3:.0f}", f"{cost.peak_bytes / 1e6:.0f}"]
    return [algorithm, f"{clients:,}", rounds, report.significant(cost.start_s, 2), *sizes]


def measure(clients: int, rounds: int, home: Path, algorithm: str = "fedavg") -> Cost:
    """Start a run and play its rounds, the first untimed."""
    spec = workload(clients, algorithm).spec(home / "data")
    began = time.perf_counter()
    simulation = Simulation(spec, seed=0, data_dir=home / "data")
    start_s = time.perf_counter() - began
    simulation.advance()
    seconds = [simulation.advance().seconds for _ in range(rounds)]
    return Cost(
        start_s,
        seconds,
        len(simulation.checkpoint()),
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def workload(clients: int, algorithm: str = "fedavg") -> Workload:
    """Return a workload of `clients` clients with SAMPLES samples, 100 a round, or all if they are
    fewer.
    """
    sizes = np.full(clients, SAMPLES)
    return Workload(
        "population",
        f"{clients:,} clients",
        lambda folder: {
            "dataset": images(f"population-{clients}", (1, 4, 4), folder, sizes=sizes),
            "model": {"kind": "logistic"},
        },
        {"lr": 0.01, "epochs": 20, "batch_size": SAMPLES},
        min(100, clients),
        0.0,
        algorithm,
    )
