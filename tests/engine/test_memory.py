"""Memory used by a run: activations of convolutional models, and the memory of many clients."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore import Simulation
from fedcore.platform.uploads.local import keep
from tests.builders.specifications import Document, specification
from tests.data import image_files
from tests.support.forks import template

CNN: Document = {
    "name": "full batches of MNIST",
    "problem": {
        "dataset": {"kind": "mnist"},
        "partition": {"kind": "iid", "clients": 2},
        "model": {"kind": "cnn"},
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.01, "steps": 1, "batch_size": "full"},
    "rounds": 1,
}
IMAGES = 2_000


def growth_mb(engine: str, folder: Path) -> float:
    """By how much a round raises this process's peak memory."""
    torch.set_num_threads(1)
    simulation = Simulation(specification(CNN, execution={"engine": engine}), seed=0, data_dir=folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    simulation.advance()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("reference", "parallel")), "vectorised"],
)
def test_full_batches_of_a_cnn_take_little_memory(engine: str, tmp_path: Path) -> None:
    """Two thousand images at once would take 0.35 MB each by their layers' outputs.

    So many as fit into 64 MiB do not.
    """
    image_files.write_mnist(tmp_path, train=IMAGES)
    with template().Pool(1) as pool:
        assert pool.apply(growth_mb, (engine, tmp_path)) < 300


POPULATION = 100_000


def resident_mb(file: Path, folder: Path) -> float:
    """This process's peak memory after thirty rounds of a hundred among as many clients as there
    are in `file`.
    """
    torch.set_num_threads(1)
    document: Document = {
        "name": "a hundred thousand clients",
        "problem": {"dataset": keep(file, folder), "model": {"kind": "logistic"}},
        "algorithm": {"kind": "scaffold"},
        "local": {"lr": 0.01, "epochs": 2, "batch_size": 10},
        "participation": {"kind": "uniform", "clients_per_round": 100},
        "rounds": 30,
        "systems": {
            "availability": {"kind": "bernoulli", "probability": 0.5},
            "devices": {"steps_per_second": {"kind": "log_normal", "median": 10, "sigma": 1}},
        },
        "evaluation": {
            "every": 30,
            "measures": ["train_loss", "surrogate_diversity", "client_accuracy_std", "gamma_inexactness"],
        },
    }
    simulation = Simulation(specification(document), seed=0, data_dir=folder)
    reports = [simulation.advance() for _ in range(30)]
    assert reports[-1].extra.keys() == {
        "surrogate_diversity",
        "client_accuracy_std",
        "gamma_inexactness",
        "simulated_seconds",
    }
    assert len(simulation.state.table.state()["ids"]) <= 3_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.nightly
def test_clients_that_never_took_part_cost_nothing(tmp_path: Path) -> None:
    """All of the population's memory for logistic regression on 60 features and 10 classes would be
    244 MB a vector.

    Neither do availability, devices and measures over all clients take more than that.
    """
    draw = np.random.default_rng(0)
    clients = np.arange(2 * POPULATION) % POPULATION
    features = draw.normal(size=(len(clients), 60)).astype(np.float32)
    np.savez(
        tmp_path / "many.npz", features=features, label=draw.integers(10, size=len(clients)), client=clients
    )
    with template().Pool(1) as pool:
        assert pool.apply(resident_mb, (tmp_path / "many.npz", tmp_path)) < 2_000
