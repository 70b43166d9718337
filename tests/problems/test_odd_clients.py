"""Clients of one sample, of one class, of less than a batch: what they do is defined, and both
engines do it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcore import Simulation
from fedcore.data.federated import Samples, UndividedDataset, divide
from fedcore.data.plan import mini_batches
from fedcore.engine.engines import ENGINES
from fedcore.errors import SpecificationError
from fedcore.platform.uploads.local import keep
from fedcore.systems.work import Work, steps_of
from tests.builders.specifications import Document, specification
from tests.platform.uploads.files import Arrays, npz

SIZES = (1, 6, 40)
"""One sample; one class; plenty."""
FEATURES = 3


def held() -> Arrays:
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, sum(SIZES))
    label[1:7] = 1
    return {
        "features": draw.normal(size=(sum(SIZES), FEATURES)),
        "label": label,
        "client": np.repeat(np.arange(3), SIZES),
    }


@pytest.fixture
def document(tmp_path: Path) -> Document:
    file = tmp_path / "odd.npz"
    file.write_bytes(npz(held()))
    return {
        "name": "odd clients",
        "problem": {"dataset": keep(file, tmp_path), "model": {"kind": "logistic"}},
        "algorithm": {"kind": "fedavg"},
        "local": {"lr": 0.5, "epochs": 2, "batch_size": 8},
        "rounds": 1,
        "execution": {"precision": "float64"},
    }


def simulation(document: Document, folder: Path, engine: str, batch_size: int | str) -> Simulation:
    changes: dict[str, Any] = {"execution": {"engine": engine}, "local": {"batch_size": batch_size}}
    return Simulation(specification(document, **changes), 0, data_dir=folder)


def trained(document: Document, folder: Path, engine: str, batch_size: int | str) -> dict[str, Tensor]:
    running = simulation(document, folder, engine, batch_size)
    running.advance()
    return running.model()


def longhand(initial: dict[str, Tensor], batch_size: int) -> dict[str, Tensor]:
    """Two epochs of plain SGD by each client over batches of at most `batch_size`, averaged by
    size.
    """
    features, label = (torch.from_numpy(held()[name]) for name in ("features", "label"))
    mean = {name: torch.zeros_like(value) for name, value in initial.items()}
    for client, (start, size) in enumerate(zip(np.cumsum([0, *SIZES]), SIZES, strict=False)):
        parameters = {name: value.clone().requires_grad_() for name, value in initial.items()}
        width = min(batch_size, size)
        for batch in mini_batches(0, 1, client, size, Work(steps_of(2, size, width), width)):
            rows = torch.from_numpy(start + batch[batch >= 0])
            scores = features[rows] @ parameters["1.weight"].T + parameters["1.bias"]
            loss = nn.functional.cross_entropy(scores, label[rows])
            gradients = torch.autograd.grad(loss, list(parameters.values()))
            parameters = {
                name: (value - 0.5 * gradient).detach().requires_grad_()
                for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
            }
        for name, value in parameters.items():
            mean[name] += size / sum(SIZES) * value.detach()
    return mean


@pytest.mark.parametrize("batch_size", [1, 4, 8, 1_000])
@pytest.mark.parametrize("engine", ENGINES)
def test_odd_clients_train_as_plain_sgd_would(
    engine: str, batch_size: int, document: Document, tmp_path: Path
) -> None:
    initial = simulation(document, tmp_path, engine, batch_size).model()
    torch.testing.assert_close(
        trained(document, tmp_path, engine, batch_size), longhand(initial, batch_size), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_larger_than_the_client_is_all_it_holds(
    engine: str, document: Document, tmp_path: Path
) -> None:
    larger, full = (trained(document, tmp_path, engine, batch_size) for batch_size in (40, "full"))
    torch.testing.assert_close(larger, full, rtol=0, atol=0)


def test_a_client_without_samples_is_refused_and_named() -> None:
    samples = Samples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(SpecificationError, match="client 1 holds no training samples") as refusal:
        divide(
            UndividedDataset(samples, samples, "empty"),
            [np.array([0]), np.array([], np.int64), np.array([1, 2])],
        )
    assert refusal.value.pointer == "/problem"
