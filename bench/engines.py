"""Compare the engines: time of a local step and peak memory by model, ten clients on one thread.

Random samples in the shapes of the real data sets; each measurement is a process of its own that
may take 8 GB at most. `engine: auto` presumes by these results, stored in `TrainingProblem.engine`.

    python -m bench engines [--steps 10]
"""

import multiprocessing
import resource
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.options import command
from fedcore import ExperimentSpec
from fedcore.data.federated import Samples, UndividedDataset, divide
from fedcore.engine.client_table import ClientTable
from fedcore.engine.compressed_links import Traffic
from fedcore.engine.engines import ENGINES, EngineName
from fedcore.engine.round import RoundCost, close_round, open_round
from fedcore.engine.server import RunContext, ServerState, client_vectors, initial_state
from fedcore.models.layers import build_module
from fedcore.problems.supervised import SupervisedProblem

CLIENTS = 10
MEMORY_BYTES = 8 << 30
CASES: list[tuple[str, dict[str, Any]]] = [
    ("digits", {"kind": "logistic"}),
    ("mnist", {"kind": "logistic"}),
    ("mnist", {"kind": "mlp", "hidden": [200]}),
    ("cifar10", {"kind": "mlp", "hidden": [512, 512]}),
    ("mnist", {"kind": "cnn"}),
    ("cifar10", {"kind": "cnn"}),
    ("cifar10", {"kind": "fedaware_cnn"}),
    ("cifar10", {"kind": "resnet18"}),
    ("cifar10", {"kind": "vgg11"}),
    ("shakespeare", {"kind": "char_lstm"}),
    ("sent140", {"kind": "sent_lstm"}),
]


class Cost(NamedTuple):
    """Cost of one engine on one model."""

    step_ms: float
    """Per client and local step."""
    peak_mb: float
    """Above what the process took before the first round."""


def main(arguments: Sequence[str]) -> None:
    """Print a row for each model and batch size."""
    parser = command("engines", __doc__)
    parser.add_argument(
        "--steps", type=int, default=10, help="local steps of each client in the measured round"
    )
    steps = parser.parse_args(arguments).steps
    print(f"{'model':34} {'batch':>5} " + " ".join(f"{name + ' ms':>14} {'peak MB':>8}" for name in ENGINES))
    for dataset, model in CASES:
        for batch_size in (10, 64):
            made = [
                engine for engine in ENGINES if engine != "compiled" or model["kind"] in ("logistic", "mlp")
            ]
            costs = [_alone(dataset, model, batch_size, steps, engine) for engine in made]
            row = " ".join(f"{cost.step_ms:14.3f} {cost.peak_mb:8.0f}" for cost in costs)
            print(f"{dataset + ' ' + ' '.join(map(str, model.values())):34} {batch_size:5} {row}", flush=True)


def _alone(*case: Any) -> Cost:
    """`measure` in a fresh process, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, case)


def measure(dataset: str, model: dict[str, Any], batch_size: int, steps: int, engine: EngineName) -> Cost:
    """Play two rounds; time the second."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    torch.set_num_threads(1)
    spec = ExperimentSpec.model_validate(
        {
            "name": "engines",
            "problem": {
                "dataset": {"kind": dataset},
                "partition": {"kind": "iid", "clients": CLIENTS},
                "model": model,
            },
            "algorithm": {"kind": "fedavg"},
            "local": {"lr": 0.01, "steps": steps, "batch_size": batch_size},
            "rounds": 2,
        }
    )
    problem = _random(spec)
    setting = RunContext(spec, 0, spec.build(), problem, ENGINES[engine])
    server, before = initial_state(setting), _peak_mb()
    table = ClientTable(client_vectors(setting.algorithm, server.x), CLIENTS)
    traffic = Traffic(setting.algorithm, CLIENTS, problem.dim, 4)
    server, _ = _play(setting, server, table, traffic, 1)
    began = time.perf_counter()
    _, account = _play(setting, server, table, traffic, 2)
    return Cost(1e3 * (time.perf_counter() - began) / account.local_steps, _peak_mb() - before)


def _play(
    setting: RunContext, server: ServerState, table: ClientTable, traffic: Traffic, round: int
) -> tuple[ServerState, RoundCost]:
    opened = open_round(setting, server, table, traffic, round)
    assert opened.job is not None
    return close_round(opened, setting.engine([opened.job])[0], table, traffic)


def _random(spec: ExperimentSpec, samples: int = 1_000) -> SupervisedProblem:
    """The problem of `spec` on random samples."""
    assert spec.problem.model is not None
    shape = spec.problem.dataset.shape()
    size = (samples, *shape.features)
    features = torch.randint(shape.symbols, size, dtype=torch.int32) if shape.symbols else torch.randn(size)
    vectors = torch.randn(shape.symbols, shape.embedding) if shape.embedding else None
    train = Samples(features, torch.randint(shape.classes, (samples,)))
    data = divide(
        UndividedDataset(train, train, "random", vectors=vectors), np.array_split(np.arange(samples), CLIENTS)
    )
    module = build_module(spec.problem.model, shape.features, shape.classes, 0, vectors)
    return SupervisedProblem(data, module, spec.problem.objective(), spec.problem.model.l2)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
