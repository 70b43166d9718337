"""The workloads: experiments of the field, as specifications."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.generated import images, plays, speeches
from fedcore import ExperimentSpec

Document = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A workload, and the parameters of its data."""

    name: str
    title: str
    problem: Callable[[Path], Document]
    """The block `problem`, its data in a folder."""
    local: Document
    clients_per_round: int
    budget_s: float
    """How long all contenders together may take, starts and first rounds included."""
    algorithm: str = "fedavg"
    together: int = 1
    """How many rounds a contender plays in a turn: several where one lasts but milliseconds, so
    that caches are as in any run.
    """
    without: tuple[str, ...] = ()
    """Contenders that have no such model."""
    published: Callable[[Path], Document] | None = None
    """As `problem`, with as many samples as its specification counts, where those of `problem` are fewer."""
    tolerance: float = 1e-2
    """Greatest distance of a model from FedQ's after a round, over how far FedQ's has moved: other
    orders of summation, grown in training, and other masks of dropout.
    """

    def spec(self, folder: Path) -> ExperimentSpec:
        """Return the specification; its data are generated in `folder` unless they are there.

        Rounds are not evaluated.
        """
        return ExperimentSpec.model_validate(
            {
                "name": self.name,
                "problem": self.problem(folder),
                "algorithm": {"kind": self.algorithm},
                "local": self.local,
                "participation": {"kind": "uniform", "clients_per_round": self.clients_per_round},
                "rounds": 1_000_000,
                "evaluation": {"every": 1_000_000},
            }
        )


def _synthetic(_: Path) -> Document:
    dataset = {"kind": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 30, "seed": 0}
    return {"dataset": dataset, "model": {"kind": "logistic"}}


def _mnist(folder: Path) -> Document:
    return {
        "dataset": images("mnist", (1, 28, 28), folder, samples=60_000),
        "partition": {"kind": "classes_per_client", "clients": 1_000},
        "model": {"kind": "logistic"},
    }


def _cifar10(folder: Path) -> Document:
    return {
        "dataset": images("cifar10", (3, 32, 32), folder, samples=50_000),
        "partition": {"kind": "iid", "clients": 100},
        "model": {"kind": "cnn", "channels": [64, 64], "hidden": [384, 192]},
    }


def _small_clients(folder: Path) -> Document:
    return {
        "dataset": images("cifar10", (3, 32, 32), folder, samples=50_000),
        "partition": {"kind": "iid", "clients": 1_000},
        "model": {"kind": "dropout_cnn"},
    }


def _cifar100(folder: Path) -> Document:
    return {
        "dataset": images("cifar100", (3, 32, 32), folder, samples=50_000, classes=100),
        "partition": {"kind": "iid", "clients": 500},
        "model": {"kind": "resnet18"},
    }


def _many(folder: Path) -> Document:
    sizes = np.random.default_rng(1).integers(30, 70, 10_000, endpoint=True)
    return {
        "dataset": images("many", (1, 28, 28), folder, sizes=sizes),
        "model": {"kind": "mlp", "hidden": [200]},
    }


def _shakespeare(folder: Path, windows: int = 80) -> Document:
    return {
        "dataset": plays(folder, roles=50, windows=windows),
        "partition": {"kind": "by_key", "clients": 50},
        "model": {"kind": "char_lstm"},
    }


def _language(folder: Path, windows: int = 25) -> Document:
    # Without dropout, so that all contenders do the same work to rounding.
    size = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 80}
    plain = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return {
        "dataset": speeches(folder, roles=50, windows=windows),
        "partition": {"kind": "by_key", "clients": 50},
        "model": {
            "kind": "causal_lm",
            "architecture": "gpt2",
            "arguments": size | plain,
            "lora": {"rank": 8, "alpha": 16, "targets": ["c_attn"]},
            "parameters": 4 * 8 * (256 + 3 * 256),
        },
    }


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "Synthetic(1,1), softmax regression 60-10: 30 clients, 10 a round, E = 20, batch 10",
            _synthetic,
            {"lr": 0.01, "epochs": 20, "batch_size": 10},
            10,
            120.0,
            together=4,
        ),
        Workload(
            "W2",
            "MNIST's shape, softmax regression 784-10: 1,000 clients with power-law sizes, 10 a round, E ="
            " 20, batch 10",
            _mnist,
            {"lr": 0.03, "epochs": 20, "batch_size": 10},
            10,
            90.0,
            together=8,
        ),
        Workload(
            "W3",
            "CIFAR-10's shape, CNN of McMahan et al.: 100 clients of 500 samples, 10 a round, E = 3,"
            " batch 64",
            _cifar10,
            {"lr": 0.02, "epochs": 3, "batch_size": 64},
            10,
            300.0,
        ),
        Workload(
            "W4",
            "MNIST's shape, MLP 784-200-10: 10,000 clients of 30 to 70 samples, 100 a round, E = 1, batch 10",
            _many,
            {"lr": 0.05, "epochs": 1, "batch_size": 10},
            100,
            110.0,
            together=4,
        ),
        Workload(
            "W5",
            "Shakespeare's shape, character LSTM (two layers of 100): 50 clients of 40 to 120 windows, 10 a"
            " round, E = 1, batch 10",
            _shakespeare,
            {"lr": 0.5, "epochs": 1, "batch_size": 10},
            10,
            100.0,
            published=partial(_shakespeare, windows=10_342),
        ),
        Workload(
            "W6",
            "CIFAR-10's shape, CNN with dropout of pfl-research: 1,000 clients of 50 samples, 50 a round, E ="
            " 1, batch 10",
            _small_clients,
            {"lr": 0.1, "epochs": 1, "batch_size": 10},
            50,
            120.0,
            tolerance=0.5,
        ),
        Workload(
            "W7",
            "CIFAR-100's shape, ResNet-18 with group norm: 500 clients of 100 samples, 10 a round, E = 1,"
            " batch 20",
            _cifar100,
            {"lr": 0.05, "epochs": 1, "batch_size": 20},
            10,
            600.0,
            without=("fedjax",),
        ),
        Workload(
            "W8",
            "Shakespeare's shape, LoRA of rank 8 on a GPT-2 of four layers of 256: 50 clients of 12 to 37"
            " windows of 80 characters, 10 a round, E = 1, batch 10",
            _language,
            {"lr": 0.5, "epochs": 1, "batch_size": 10},
            10,
            120.0,
            without=("fedlab", "fedjax"),
            published=partial(_language, windows=250),
        ),
    )
}
