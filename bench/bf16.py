"""Measure `execution.autocast: bf16` beside float32: rounds of a workload in turn, and the accuracy
of five seeds on MNIST (FEDQ_DATA_DIR), which is not to differ.

    python -m bench bf16 [--workload W3] [--pairs 5] [--rounds 20] [--home .bench] [--write PAGE]
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import report
from bench.options import HOME, command
from bench.workloads import WORKLOADS
from fedcore import ExperimentSpec, Simulation
from fedcore.settings import settings
from fedcore.statistics.best_set import ArmVerdict, ComparisonScale, find_best_arms

SEEDS = range(5)
EXECUTIONS: tuple[dict[str, Any], ...] = (
    {"precision": "float32"},
    {"precision": "float32", "autocast": "bf16"},
)
HEADINGS = ("workload", "engine", "float32, s", "bf16, s", "bf16 is faster by")


def main(arguments: Sequence[str]) -> None:
    """Print both, and put them into a page where requested."""
    parser = command("bf16", __doc__)
    parser.add_argument("--workload", choices=WORKLOADS, default="W3", help="what is timed")
    parser.add_argument("--pairs", type=int, default=5, help="timed rounds of each, after one that is not")
    parser.add_argument(
        "--rounds", type=int, default=20, help="rounds of each seed on MNIST; 0 leaves it out"
    )
    parser.add_argument("--home", type=Path, default=HOME, help="where data lie")
    parser.add_argument("--write", type=Path, help="put the results into this page, between its markers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(os.cpu_count() or 1)
    text = report.table(HEADINGS, [_row(options.workload, options.home / "data", options.pairs)])
    print(text, flush=True)
    if options.rounds:
        verdict = accuracy(options.rounds, SEEDS)
        print(verdict, flush=True)
        text += "\n\n" + verdict
    if options.write is not None:
        report.put(options.write, "bf16", text)


def _row(workload: str, data: Path, pairs: int) -> list[str]:
    engine, single, half = times(workload, data, pairs)
    ratios = [one / other for one, other in zip(single, half, strict=True)]
    return [workload, engine, *map(report.numbers, (single, half, ratios))]


def times(workload: str, data: Path, pairs: int) -> tuple[str, list[float], list[float]]:
    """The engine, and seconds of rounds in float32 and in bfloat16, in turn, after one of each that is
    not counted.
    """
    spec = WORKLOADS[workload].spec(data)
    runs = [Simulation(_in(spec, execution), 0, data_dir=data) for execution in EXECUTIONS]
    rounds = [[run.advance().seconds for run in runs] for _ in range(pairs + 1)][1:]
    single, half = (list(column) for column in zip(*rounds, strict=True))
    return runs[1].facts.choice.engine, single, half


def _in(spec: ExperimentSpec, execution: dict[str, Any]) -> ExperimentSpec:
    document = spec.model_dump(mode="json")
    return ExperimentSpec.model_validate(document | {"execution": execution})


def accuracy(rounds: int, seeds: Sequence[int]) -> str:
    """Compare the test accuracy of both after `rounds`, paired by seed."""
    spec = ExperimentSpec.model_validate(
        {
            "name": "bf16",
            "problem": {
                "dataset": {"kind": "mnist"},
                "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.5},
                "model": {"kind": "cnn"},
            },
            "algorithm": {"kind": "fedavg"},
            "local": {"lr": 0.05, "epochs": 1, "batch_size": 50},
            "participation": {"kind": "uniform", "clients_per_round": 10},
            "rounds": rounds,
            "evaluation": {"every": rounds, "measures": ["test_accuracy"]},
        }
    )
    single, half = (
        {seed: _accuracy(_in(spec, execution), seed) for seed in seeds} for execution in EXECUTIONS
    )
    found = find_best_arms([single, half], higher_is_better=True, scale=ComparisonScale.LOGIT, control=0)
    beside = found.control[1]
    assert beside.difference is not None
    verdict = "no difference is shown" if beside.verdict is ArmVerdict.UNCLEAR else beside.verdict
    return (
        f"CNN on MNIST, 100 clients by Dirichlet(0.5), 10 a round, {rounds} rounds, {len(seeds)} seeds:"
        f" accuracy {statistics.mean(single.values()):.4f} in float32,"
        f" {statistics.mean(half.values()):.4f} in bf16; difference {beside.difference:+.4f}"
        f" (95 % interval {beside.low:+.4f} to {beside.high:+.4f}): {verdict}."
    )


def _accuracy(spec: ExperimentSpec, seed: int) -> float:
    simulation = Simulation(spec, seed, data_dir=settings().datasets)
    last = simulation.advance()
    while not simulation.finished:
        last = simulation.advance()
    assert last.test_accuracy is not None
    return last.test_accuracy
