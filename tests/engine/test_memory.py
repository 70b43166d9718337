"""What a round may take of the machine's memory: the activations of a convolutional model once took all of it."""

import multiprocessing
import resource
from pathlib import Path

import pytest
import torch

from fedcore import Simulation
from tests.data import image_files
from tests.documents import Document, specification

CNN: Document = {
    "name": "full batches of MNIST",
    "problem": {"dataset": {"kind": "mnist"}, "partition": {"kind": "iid", "clients": 2}, "model": {"kind": "cnn"}},
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
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_full_batches_of_a_cnn_take_little_memory(engine: str, tmp_path: Path) -> None:
    """Two thousand images at once would take 0.35 MB each by their layers' outputs; so many as fit into 64 MiB do not."""
    image_files.write_mnist(tmp_path, train=IMAGES)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(growth_mb, (engine, tmp_path)) < 300
