"""Samples divided over clients."""

import numpy as np
import pytest
import torch

from fedcore.data.federated import Keys, Samples, UndividedDataset, divide, with_tests_of
from fedcore.errors import SpecificationError

TRAIN = Samples(torch.arange(20.0).view(10, 2), torch.arange(10))
TEST = Samples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
DATASET = UndividedDataset(TRAIN, TEST, "ten samples")
PARTS = [np.array([7, 1]), np.array([3]), np.array([0, 9, 2])]


def test_clients_hold_their_parts_of_one_copy() -> None:
    data = divide(DATASET, PARTS)
    assert data.sizes.tolist() == [2, 1, 3]
    assert [data.rows(client).tolist() for client in range(3)] == [part.tolist() for part in PARTS]
    assert data.dataset.train.features.data_ptr() == TRAIN.features.data_ptr()


def test_what_all_hold_leaves_out_what_nobody_holds() -> None:
    batches = list(divide(DATASET, PARTS).held(4))
    assert [len(batch) for batch in batches] == [4, 2]
    assert sorted(torch.cat([batch.labels for batch in batches]).tolist()) == [0, 1, 2, 3, 7, 9]


def test_when_everything_is_held_it_is_read_in_place() -> None:
    batches = list(divide(DATASET, [np.arange(10)]).held(4))
    assert torch.equal(torch.cat([batch.features for batch in batches]), TRAIN.features)
    assert batches[0].features.data_ptr() == TRAIN.features.data_ptr()


def test_taken_samples_keep_the_shape_of_their_rows() -> None:
    taken = TRAIN.take(torch.tensor([[1, 2, 3], [4, 4, 0]]))
    assert taken.labels.tolist() == [[1, 2, 3], [4, 4, 0]]
    assert taken.features.shape == (2, 3, 2)
    assert taken.features[1, 0].tolist() == [8.0, 9.0]


def test_testing_is_on_the_samples_of_the_chosen_and_of_those_who_do_not_train() -> None:
    test = Samples(torch.arange(5.0)[:, None], torch.arange(5))
    dataset = UndividedDataset(TRAIN, test, "keyed", Keys(np.zeros(10, np.int64), np.array([0, 1, -1, 2, 1])))
    chosen = with_tests_of(dataset, np.array([1]))
    assert chosen.test.labels.tolist() == [1, 2, 4]
    assert chosen.keys is not None
    assert chosen.keys.test.tolist() == [1, -1, 1]


def test_symbols_stay_whole_numbers_in_any_precision() -> None:
    symbols = Samples(torch.arange(4, dtype=torch.uint8)[:, None], torch.zeros(4, dtype=torch.int64))
    moved = UndividedDataset(symbols, symbols, "symbols", vectors=torch.zeros(4, 2)).to("cpu", torch.float64)
    assert moved.train.features.dtype == torch.uint8
    assert moved.vectors is not None
    assert moved.vectors.dtype == torch.float64


@pytest.mark.parametrize("name", ["features", "labels"])
def test_numbers_that_single_precision_cannot_hold_are_refused_with_the_remedy(name: str) -> None:
    numbers = {
        "features": torch.ones(3, 2, dtype=torch.float64),
        "labels": torch.ones(3, dtype=torch.float64),
    }
    numbers[name].view(-1)[1] = -1e300
    samples = Samples(numbers["features"], numbers["labels"])
    assert samples.to("cpu", torch.float64).features.dtype == torch.float64
    with pytest.raises(SpecificationError, match=f"{name} reach 1e.300, .*`execution.precision: float64`"):
        samples.to("cpu", torch.float32)
