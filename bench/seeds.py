"""Compare five seeds of a workload as one batch with the same one by one, in turn, in one process.

python -m bench seeds [--workloads W1,W4] [--engine auto] [--seeds 5] [--pairs 7]
    [--device cpu] [--write PAGE]
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench import report
from bench.options import HOME, among, command
from bench.workloads import WORKLOADS
from fedcore import ExperimentSpec, Simulation
from fedcore.simulation.simulation import advance_batch

HEADINGS = ("workload", "engine", "one by one, s", "in a batch, s", "the batch is faster by")


def main(arguments: Sequence[str]) -> None:
    """Print a row for each workload, and write the table where requested."""
    parser = command("seeds", __doc__)
    parser.add_argument("--workloads", type=among(WORKLOADS), default=["W1", "W2", "W4"], help="W1,W2,...")
    parser.add_argument("--engine", default="auto", help="engine of the batch")
    parser.add_argument("--seeds", type=int, default=5, help="runs in the batch")
    parser.add_argument("--pairs", type=int, default=7, help="timed rounds of each, after one that is not")
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.add_argument("--home", type=Path, default=HOME, help="where data lie")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its markers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(os.cpu_count() or 1)
    text = report.table(HEADINGS, [_row(name, options) for name in options.workloads])
    print(text, flush=True)
    if options.write is not None:
        report.put(options.write, "seeds", text)


def _row(name: str, options: argparse.Namespace) -> list[str]:
    data = options.home / "data"
    spec = WORKLOADS[name].spec(data)
    spec = spec.model_copy(update={"execution": spec.execution.model_copy(update={"engine": options.engine})})
    alone, together = measure(spec, data, options.seeds, options.pairs, options.device)
    engine = Simulation(spec, 0, device=options.device, data_dir=data).facts.choice.engine
    ratios = [one / other for one, other in zip(alone, together, strict=True)]
    return [name, engine, *map(report.numbers, (alone, together, ratios))]


def measure(
    spec: ExperimentSpec, data: Path, seeds: int, pairs: int, device: str
) -> tuple[list[float], list[float]]:
    """Seconds of a round of all seeds one by one, and of the same as one batch, `pairs` of each
    after an untimed one.
    """
    alone, together = (
        [Simulation(spec, seed, device=device, data_dir=data) for seed in range(seeds)] for _ in range(2)
    )
    ways: tuple[Callable[[], object], ...] = (
        lambda: [member.advance() for member in alone],
        lambda: advance_batch(together),
    )
    times: list[list[float]] = [[_timed(way, device) for way in ways] for _ in range(pairs + 1)]
    one_by_one, batch = zip(*times[1:], strict=True)
    return list(one_by_one), list(batch)


def _timed(way: Callable[[], object], device: str) -> float:
    began = time.perf_counter()
    way()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
