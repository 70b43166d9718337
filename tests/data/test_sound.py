"""Data that cannot be trained on are refused when they are read, with the sample at fault."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcore.data.base import DataShape
from fedcore.data.federated import Samples, UndividedDataset, validate_samples
from fedcore.errors import DataUnavailableError

SHAPE = DataShape((2, 3), 4, 5)


def samples(count: int = 5) -> Samples:
    return Samples(torch.zeros(count, 2, 3), torch.arange(count) % 4)


def test_sound_data_pass_as_they_are() -> None:
    dataset = UndividedDataset(samples(), samples(0), "sound")
    assert validate_samples(dataset, SHAPE) is dataset
    symbols = Samples(torch.zeros(5, 2, 3, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64))
    assert validate_samples(UndividedDataset(symbols, symbols, "symbols"), SHAPE).train is symbols


@given(
    row=st.integers(0, 4),
    value=st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    part=st.sampled_from(["train", "test"]),
)
def test_a_sample_that_is_not_finite_is_named(row: int, value: float, part: str) -> None:
    broken = samples()
    broken.features[row, 1, 2] = value
    whole = UndividedDataset(samples(), samples(), "noise")
    dataset = replace(whole, train=broken) if part == "train" else replace(whole, test=broken)
    with pytest.raises(
        DataUnavailableError, match=f"noise: .* sample {row} holds a number that is not finite"
    ):
        validate_samples(dataset, SHAPE)


def test_large_data_are_looked_at_in_pieces() -> None:
    broken = samples()
    broken.features[4, 0, 0] = float("nan")
    with pytest.raises(DataUnavailableError, match="sample 4"):
        validate_samples(UndividedDataset(broken, samples(), "noise"), SHAPE, chunk_elements=12)


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_of_no_class_is_named(label: int) -> None:
    broken = samples()
    broken.labels[3] = label
    with pytest.raises(
        DataUnavailableError, match=f"test sample 3 is of class {label}, and classes are numbered from 0 to 3"
    ):
        validate_samples(UndividedDataset(samples(), broken, "noise"), SHAPE)


def test_samples_of_another_shape_are_refused() -> None:
    with pytest.raises(DataUnavailableError, match=r"shape \[2, 3\] instead of \[3, 2\]"):
        validate_samples(UndividedDataset(samples(), samples(), "noise"), DataShape((3, 2), 4, 5))


def test_vectors_must_be_finite() -> None:
    with pytest.raises(DataUnavailableError, match="a word's vector is not finite"):
        validate_samples(
            UndividedDataset(samples(), samples(), "noise", vectors=torch.full((1, 2), float("nan"))), SHAPE
        )
