"""Images held as bytes: a quarter of the memory, and the bits of the numbers that they stand for."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from fedcore import ExperimentSpec, Simulation
from fedcore.data.augment import CropFlip
from fedcore.data.base import DatasetSpec, DataShape
from fedcore.data.federated import (
    Samples,
    Scale,
    UndividedDataset,
    checksum,
    in_one_piece,
    merge_splits,
)
from fedcore.data.images import ByteImages
from fedcore.problems.supervised import SupervisedProblem
from tests.documents import Document

DRAW = np.random.default_rng(0)
PIXELS = torch.from_numpy(DRAW.integers(0, 256, (90, 3, 8, 8), np.uint8))
LABELS = torch.from_numpy(DRAW.integers(0, 4, 90))
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class InBytes(ByteImages):
    """Random images, as files hold them."""

    title = "random"
    mean = MEAN
    deviation = DEVIATION

    kind: Literal["in_bytes"] = "in_bytes"
    augmentation: Any = "none"

    def shape(self) -> DataShape:
        return DataShape((3, 8, 8), 4, 60)

    def read(self, folder: Path) -> tuple[Samples, Samples]:
        return Samples(PIXELS[:60], LABELS[:60]), Samples(PIXELS[60:], LABELS[60:])


class InNumbers(InBytes):
    """The same, converted when they are read."""

    kind: Literal["in_numbers"] = "in_numbers"  # type: ignore[assignment]

    def load(self, folder: Path) -> UndividedDataset:
        return super().load(folder).numbers()


def simulation(
    dataset: DatasetSpec, *, seed: int = 0, hold_out: float | None = None, **fields: Any
) -> Simulation:
    document: Document = {
        "name": "bytes",
        "problem": {
            "dataset": dataset,
            "partition": {
                "kind": "dirichlet",
                "clients": 4,
                "alpha": 1.0,
                "min_samples": 2,
                "hold_out": hold_out,
            },
            "model": {"kind": "cnn", "channels": [2, 3], "hidden": 4},
        },
        "algorithm": {"kind": "scaffold"},
        "local": {"lr": 0.05, "epochs": 1, "batch_size": 5},
        "rounds": 2,
    }
    return Simulation(ExperimentSpec.model_validate(document | fields), seed, data_dir=Path("nowhere"))


def data_of(running: Simulation) -> UndividedDataset:
    problem = running._setting.problem
    assert isinstance(problem, SupervisedProblem)
    return problem.data.dataset


def outcome(running: Simulation) -> list[Any]:
    losses = []
    while not running.finished:
        report = running.advance()
        losses += [report.train_loss, report.test_loss, report.test_accuracy]
    return [*losses, *(part.numpy().tobytes() for part in running.model().values())]


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("hold_out", [None, 0.2])
def test_images_held_as_bytes_train_to_the_same_bits(
    engine: str, precision: str, hold_out: float | None
) -> None:
    execution = {"engine": engine, "precision": precision}
    as_bytes, as_numbers = (
        simulation(kind(), hold_out=hold_out, execution=execution) for kind in (InBytes, InNumbers)
    )
    assert data_of(as_bytes).train.features.dtype == torch.uint8
    assert as_bytes.data_sha256 == as_numbers.data_sha256
    assert outcome(as_bytes) == outcome(as_numbers)


def test_images_held_as_bytes_are_varied_to_the_same_bits() -> None:
    varied = CropFlip(kind="crop_flip", pad=2)
    as_bytes, as_numbers = (simulation(kind(augmentation=varied)) for kind in (InBytes, InNumbers))
    assert outcome(as_bytes) == outcome(as_numbers)


@pytest.mark.parametrize("hold_out", [None, 0.2])
def test_runs_of_any_seed_and_arm_share_one_copy(hold_out: float | None) -> None:
    runs = [
        simulation(InBytes(), seed=seed, hold_out=hold_out, local={"lr": lr, "epochs": 1})
        for seed in range(3)
        for lr in (0.1, 0.2)
    ]
    trains = [data_of(run).train.features for run in runs]
    assert len({train.data_ptr() for train in trains}) == 1
    assert {len(train) for train in trains} == {60 if hold_out is None else 90}


def test_a_dense_network_is_given_numbers_which_every_engine_reads() -> None:
    problem = {
        "dataset": InBytes(),
        "partition": {"kind": "iid", "clients": 4},
        "model": {"kind": "logistic"},
    }
    running = simulation(InBytes(), problem=problem, algorithm={"kind": "fedavg"})
    assert data_of(running).train.features.dtype == torch.float32
    assert running._setting.problem.dense is not None


def test_numbers_are_those_of_the_formula_in_float32() -> None:
    mean, deviation = (np.array(values, np.float32)[:, None, None] for values in (MEAN, DEVIATION))
    expected = (PIXELS.numpy().astype(np.float32) / np.float32(255) - mean) / deviation
    whole = InBytes().load(Path())
    assert np.array_equal(whole.train.numbers().features.numpy(), expected[:60])
    rows = torch.tensor([[3, 1], [7, 7]])
    assert np.array_equal(whole.train.take(rows).features.numpy(), expected[rows.numpy()])
    batches = torch.cat([batch.features for batch in whole.test.batches(7)])
    assert np.array_equal(batches.numpy(), expected[60:])


def test_the_checksum_is_that_of_the_numbers() -> None:
    whole = InBytes().load(Path())
    assert checksum(whole) == checksum(whole.numbers())


def test_bytes_without_a_scale_are_symbols_and_with_the_plain_one_themselves() -> None:
    symbols = Samples(PIXELS, LABELS)
    assert symbols.dtype is None
    assert symbols.take(torch.tensor([0])).features.dtype == torch.uint8
    assert torch.equal(Samples(PIXELS, LABELS, Scale()).numbers().features, PIXELS.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_merging_what_lies_in_one_piece_copies_nothing(dtype: torch.dtype) -> None:
    train, test = in_one_piece(Samples(PIXELS[:5], LABELS[:5]), Samples(PIXELS[70:], LABELS[70:]))
    first, second = (Samples(part.features, part.labels, Scale()) for part in (train, test))
    whole = UndividedDataset(first, second, "one piece").numbers().to("cpu", dtype)
    merged = merge_splits(whole).train
    assert merged.features.data_ptr() == whole.train.features.data_ptr()
    assert torch.equal(merged.features, torch.cat([PIXELS[:5], PIXELS[70:]]).to(dtype))
    assert torch.equal(merged.labels, torch.cat([LABELS[:5], LABELS[70:]]))
