"""Test sets made of the clients' own samples."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data.federated import Keys, Samples, UndividedDataset, hold_out, merge_splits
from fedcore.data.partition import partition
from fedcore.data.size_skew import IidPartition


def numbered(count: int, first: int = 0) -> Samples:
    """Every sample is its number."""
    numbers = torch.arange(first, first + count)
    return Samples(numbers.double()[:, None], numbers)


def test_pooled_data_are_all_to_be_divided() -> None:
    whole = merge_splits(
        UndividedDataset(
            numbered(4), numbered(2, 4), "numbers", Keys(np.zeros(4, np.int64), np.zeros(2, np.int64))
        )
    )
    assert whole.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert (len(whole.test), whole.keys) == (0, None)


@given(
    seed=st.integers(0, 99), clients=st.integers(1, 8), samples=st.integers(8, 60), percent=st.integers(1, 99)
)
@settings(max_examples=60)
def test_every_sample_is_trained_or_tested_on_once(
    seed: int, clients: int, samples: int, percent: int
) -> None:
    dataset = merge_splits(UndividedDataset(numbered(samples - 3), numbered(3, samples - 3), "numbers"))
    parts = partition(IidPartition(kind="iid", clients=clients), dataset.train.labels.numpy(), seed)
    data = hold_out(dataset, parts, percent / 100, seed)
    trained = [set(data.dataset.train.take(data.rows(client)).labels.tolist()) for client in range(clients)]
    tested = data.dataset.test.labels.tolist()
    assert data.owners is not None
    assert all(label in parts[owner] for label, owner in zip(tested, data.owners, strict=True))
    assert sorted([*tested, *(label for held in trained for label in held)]) == [*range(samples)]
    for part, held in zip(parts, trained, strict=True):
        assert held < set(part.tolist()) or held == set(part.tolist())
        assert len(held) == max(1, (100 - percent) * len(part) // 100)


@pytest.mark.parametrize(
    ("share", "samples", "trained"),
    [(0.3, 90, 63), (0.3, 170, 119), (0.07, 500, 465), (0.1, 30, 27), (0.99, 3, 1)],
)
def test_the_share_that_trains_is_rounded_down_once(share: float, samples: int, trained: int) -> None:
    """0.7 of 90 is 63, of which the product of floats falls short."""
    dataset = merge_splits(UndividedDataset(numbered(samples), numbered(0, samples), "numbers"))
    assert len(hold_out(dataset, [np.arange(samples)], share, 0).dataset.test) == samples - trained


def test_what_is_held_out_is_drawn_by_seed() -> None:
    dataset = merge_splits(UndividedDataset(numbered(40), numbered(0, 40), "numbers"))
    drawn = [hold_out(dataset, [np.arange(40)], 0.5, seed).dataset.test.labels.tolist() for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert sorted(drawn[0]) != drawn[0]
