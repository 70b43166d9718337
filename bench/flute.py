"""FLUTE's four benchmark tasks (the presets flute-benchmark-*), a round of each on generated data of
the same shape, beside the times that its repository publishes.

Those are of whole runs, evaluations included, on GPUs that it does not name; FedQ's are the rounds of
a run times the median of a round on all cores of this machine, without evaluations.

    python -m bench flute [--rounds 5] [--home .bench] [--write PAGE]
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bench import report
from bench.generated import images, plays
from bench.options import HOME, command
from fedcore import ExperimentSpec, Simulation, presets

Document = dict[str, Any]
HEADINGS = ("task", "rounds", "FedML (MPI), published", "FLUTE (NCCL), published", "a round, s", "FedQ here")


class Task(NamedTuple):
    """A task, and the time of a run as published."""

    preset: str
    problem: Callable[[Path], Document]
    """Replacement of the data of the preset, generated in a folder."""
    fedml: str
    flute: str


def _mnist(folder: Path) -> Document:
    return {"dataset": images("mnist", (1, 28, 28), folder, samples=60_000)}


def _femnist(folder: Path) -> Document:
    """Of the 3,400 writers with 198 samples in the mean, 340: as good as any for a cohort of ten."""
    sizes = np.random.default_rng(1).integers(100, 296, 340, endpoint=True)
    data = images("fed-emnist", (1, 28, 28), folder, sizes=sizes, classes=62)
    return {"dataset": data, "partition": None}


def _cifar100(folder: Path) -> Document:
    return {"dataset": images("cifar100", (3, 32, 32), folder, samples=50_000, classes=100)}


def _shakespeare(folder: Path) -> Document:
    """Roles with 22 windows in the mean, as in TFF's data, 50 of the 715."""
    return {"dataset": plays(folder, roles=50, windows=22), "partition": {"kind": "by_key", "clients": 50}}


TASKS = (
    Task("flute-benchmark-lr-mnist", _mnist, "00:03:09", "00:01:35"),
    Task("flute-benchmark-cnn-femnist", _femnist, "05:49:52", "00:08:22"),
    Task("flute-benchmark-resnet-fedcifar100", _cifar100, "15:55:36", "01:42:01"),
    Task("flute-benchmark-rnn-fedshakespeare", _shakespeare, "06:46:21", "00:21:50"),
)


def main(arguments: Sequence[str]) -> None:
    """Print the table, and put it into a page where requested."""
    parser = command("flute", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="timed, after one that is not")
    parser.add_argument("--home", type=Path, default=HOME, help="where data lie")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its markers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(os.cpu_count() or 1)
    rows = [_row(task, measure(task, options.home / "data", options.rounds)) for task in TASKS]
    text = report.table(HEADINGS, rows)
    print(text, flush=True)
    if options.write is not None:
        report.put(options.write, "flute", text)


def spec_of(task: Task, folder: Path) -> ExperimentSpec:
    """The task's specification on generated data, without evaluations but for the last round."""
    document = presets.load(task.preset).spec
    # A folder of its own, since texts have one name.
    problem = document["problem"] | task.problem(folder / "flute")
    changes = {"problem": problem, "evaluation": {"every": document["rounds"]}}
    return ExperimentSpec.model_validate(document | changes)


def measure(task: Task, folder: Path, rounds: int) -> list[float]:
    """Seconds of rounds, the first untimed."""
    simulation = Simulation(spec_of(task, folder), seed=0, data_dir=folder / "flute")
    simulation.advance()
    return [simulation.advance().seconds for _ in range(rounds)]


def _row(task: Task, seconds: Sequence[float]) -> list[str]:
    preset = presets.load(task.preset)
    rounds = preset.spec["rounds"]
    run_s = rounds * float(np.median(seconds))
    whole = f"{run_s:.2g} s" if run_s < 60 else f"{timedelta(seconds=round(run_s))!s:0>8}"
    title = preset.title.removeprefix("FLUTE's four benchmark tasks: ")
    return [title, f"{rounds:,}", task.fedml, task.flute, report.numbers(seconds), whole]
