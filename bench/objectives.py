"""Compare a local step of objectives with that of FedAvg on the same network, in turn, in one process.

python -m bench objectives [--workloads W2,W3] [--engines parallel,vectorised] [--pairs 5] [--write PAGE]

A pass of another model counts as a third of a gradient; a number of 1 in the table says that a step takes
exactly its counted passes.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.options import HOME, among, command
from bench.workloads import WORKLOADS
from fedcore import ExperimentSpec, Simulation

KINDS = ("fedlc", "fedntd", "moon")
ENGINES = ("parallel", "vectorised")
STEPS, CLIENTS = 5, 2


def main(arguments: Sequence[str]) -> None:
    """Print a row for each workload and engine, and write the table where requested."""
    parser = command("objectives", __doc__)
    parser.add_argument("--workloads", type=among(WORKLOADS), default=["W2", "W3", "W6", "W7"])
    parser.add_argument("--engines", type=among(dict.fromkeys(ENGINES)), default=list(ENGINES))
    parser.add_argument("--pairs", type=int, default=5, help="timed rounds of each, after one that is not")
    parser.add_argument("--home", type=Path, default=HOME, help="where data lie")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its markers")
    options = parser.parse_args(arguments)
    headings = ["workload", "engine", "FedAvg, s", *(f"{kind}: over its counted passes" for kind in KINDS)]
    rows = [_row(name, engine, options) for name in options.workloads for engine in options.engines]
    text = report.table(headings, rows)
    print(text, flush=True)
    if options.write is not None:
        report.put(options.write, "objectives", text)


def _row(name: str, engine: str, options: argparse.Namespace) -> list[str]:
    data = options.home / "data"
    document = WORKLOADS[name].spec(data).model_dump(mode="json")
    local = document["local"] | {"epochs": None, "steps": STEPS}
    changes = {
        "local": local,
        "participation": {"kind": "uniform", "clients_per_round": CLIENTS},
        "execution": document["execution"] | {"engine": engine},
        "evaluation": {"measures": [], "every": 1_000},
        "rounds": 1_000,
    }
    runs = []
    for kind in ("fedavg", *KINDS):
        spec = ExperimentSpec.model_validate(document | changes | {"algorithm": {"kind": kind}})
        runs.append(Simulation(spec, 0, data_dir=data))
    times = [[_timed(run) for run in runs] for _ in range(options.pairs + 1)]
    own, *others = zip(*times[1:], strict=True)
    counted = [run.context.algorithm.gradients_per_step() for run in runs[1:]]
    ratios = [
        [taken / (passes * plain) for taken, plain in zip(each, own, strict=True)]
        for each, passes in zip(others, counted, strict=True)
    ]
    return [name, engine, report.numbers(own), *map(report.numbers, ratios)]


def _timed(run: Simulation) -> float:
    began = time.perf_counter()
    run.advance()
    return time.perf_counter() - began
