"""Scaled signs: how much they shrink, what a zero becomes, what they cost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcore.compression.sign import ScaledSign, Sign


def test_every_entry_becomes_the_mean_magnitude_and_a_zero_is_positive() -> None:
    message = torch.tensor([[3.0, -1.0, 0.0, -0.0, -4.0], [0.0, 0.0, 0.0, 0.0, 5.0]], dtype=torch.float64)
    assert ScaledSign().compress(message).tolist() == [[1.6, -1.6, 1.6, 1.6, -1.6], [1.0] * 5]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_sign_is_a_contraction_with_the_factor_of_its_density(entries: list[float]) -> None:
    """|C(v) - v|^2 = |v|^2 - |v|_1^2 / D <= (1 - 1/D) |v|^2 (Karimireddy et al., 2019, Lemma 8)."""
    message = torch.tensor(entries, dtype=torch.float64)
    lost, whole, dim = (
        (message - ScaledSign().compress(message)).square().sum(),
        message.square().sum(),
        len(entries),
    )
    torch.testing.assert_close(
        lost, whole - message.abs().sum() ** 2 / dim, rtol=0, atol=1e-9 * float(whole) + 1e-300
    )
    assert lost <= (1 - 1 / dim) * whole * (1 + 1e-12) + 1e-12 * whole


@pytest.mark.parametrize("culprit", [float("inf"), float("-inf"), float("nan")])
def test_entry_that_is_not_finite_takes_the_whole_message_with_it(culprit: float) -> None:
    received = ScaledSign().compress(torch.tensor([[1.0, culprit, -2.0], [1.0, 1.0, -1.0]]))
    assert not received[0].isfinite().any()
    assert received[1].tolist() == [1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("dim", "word", "taken"), [(1, 4, 4), (2, 4, 5), (8, 4, 5), (9, 4, 6), (1_000, 4, 129), (1_000, 8, 133)]
)
def test_a_message_costs_a_scale_and_a_bit_an_entry_and_never_more_than_the_dense_one(
    dim: int, word: int, taken: int
) -> None:
    assert Sign(kind="sign").build(dim).message_bytes(dim, word) == taken
