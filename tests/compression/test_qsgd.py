"""QSGD: unbiased, as noisy as the paper allows, and packed into bytes."""

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedcore.compression.qsgd import QSGD, Quantise

GRID = 4_000
"""Values of u, equally spaced: means over them differ from those over [0, 1) by less than 1 / GRID
of a level.
"""
messages = st.lists(
    st.floats(-1e6, 1e6).filter(lambda entry: entry == 0 or abs(entry) > 1e-6), min_size=1, max_size=30
)
levels = st.integers(1, 300)


def over_all_draws(compressor: Quantise, message: Tensor) -> Tensor:
    """Q [GRID, D] for every u of the grid.

    Each entry depends on its own u alone, so all may share one.
    """
    u = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    return compressor.compress(message.expand(GRID, -1), u[:, None].expand(-1, len(message)))


@given(messages, levels)
def test_mean_of_qsgd_is_the_message(entries: list[float], s: int) -> None:
    message = torch.tensor(entries, dtype=torch.float64)
    mean = over_all_draws(Quantise(levels=s), message).mean(0)
    torch.testing.assert_close(mean, message, rtol=1e-9, atol=float(message.norm()) / s / GRID + 1e-12)


@pytest.mark.slow
@given(messages, levels)
def test_variance_of_qsgd_is_that_of_the_rounding_and_within_the_bound_of_the_paper(
    entries: list[float], s: int
) -> None:
    """E |Q - v|^2 = (|v|/s)^2 sum_i f_i (1 - f_i) <= min(D / s^2, sqrt(D) / s) |v|^2, f_i = frac(s
    |v_i| / |v|) (Lemma 3.1).
    """
    message, dim = torch.tensor(entries, dtype=torch.float64), len(entries)
    norm = float(message.norm())
    variance = float((over_all_draws(Quantise(levels=s), message) - message).square().sum(-1).mean())
    fraction = (s * message.abs() / (norm or 1.0)) % 1
    exact = (norm / s) ** 2 * float((fraction * (1 - fraction)).sum())
    slack = 2 * dim * (norm / s) ** 2 / GRID + 1e-9 * norm**2
    assert variance == pytest.approx(exact, rel=0, abs=slack)
    assert exact <= min(dim / s**2, sqrt(dim) / s) * norm**2 * (1 + 1e-9)


@given(messages, levels)
def test_with_error_feedback_it_contracts_in_the_mean(entries: list[float], s: int) -> None:
    """E |Q / (1 + omega) - v|^2 <= (1 - 1 / (1 + omega)) |v|^2 (Karimireddy et al., 2019)."""
    message, dim = torch.tensor(entries, dtype=torch.float64), len(entries)
    omega, norm = min(dim / s**2, sqrt(dim) / s), float(message.norm())
    lost = (
        (over_all_draws(Quantise(error_feedback=True, levels=s), message) - message).square().sum(-1).mean()
    )
    assert lost <= ((1 - 1 / (1 + omega)) + 2 * dim / s**2 / GRID + 1e-9) * norm**2


def test_entries_on_a_level_are_not_rounded() -> None:
    """|v| = 5, s = 5: the levels are whole numbers."""
    message = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64)
    for u in (0.0, 0.5, 1 - 2**-53):
        torch.testing.assert_close(
            Quantise(levels=5).compress(message, torch.full_like(message, u)), message, rtol=1e-15, atol=0
        )


def test_an_entry_between_two_levels_goes_up_if_its_number_is_below_its_fraction() -> None:
    """|v| = 5, s = 1: |v_i| / |v| = 0.6 and 0.8."""
    message, u = (
        torch.tensor([[3.0, -4.0]] * 2),
        torch.tensor([[0.59, 0.81], [0.61, 0.79]], dtype=torch.float64),
    )
    assert Quantise(levels=1).compress(message, u).tolist() == [[5.0, -0.0], [0.0, -5.0]]


@pytest.mark.parametrize("culprit", [float("inf"), float("-inf"), float("nan")])
def test_entry_that_is_not_finite_takes_the_whole_message_with_it(culprit: float) -> None:
    message = torch.tensor([[1.0, culprit, -2.0], [0.0, 3.0, -4.0]])
    received = Quantise(levels=5).compress(message, torch.full(message.shape, 0.5))
    assert received[0].isnan().all()
    torch.testing.assert_close(received[1], message[1])


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30, 3e38])
def test_squares_neither_vanish_nor_overflow(size: float) -> None:
    message = size * torch.tensor([0.6, -0.8])
    torch.testing.assert_close(
        Quantise(levels=5).compress(message, torch.full((2,), 0.5)), message, rtol=1e-5, atol=1e-44
    )


@pytest.mark.parametrize(
    ("s", "dim", "word", "taken"),
    [
        (1, 1_000, 4, 4 + 250),  # two bits an entry
        (3, 1_000, 4, 4 + 375),  # three
        (4, 1_000, 4, 4 + 500),  # four: levels 0 to 4 need three bits
        (127, 1_000, 4, 4 + 1_000),
        (127, 1_000, 8, 8 + 1_000),
        (1, 3, 4, 4 + 1),
        (1, 5, 4, 4 + 2),
        (127, 1, 4, 4),
    ],
)
def test_a_message_costs_a_norm_and_packed_levels_and_never_more_than_the_dense_one(
    s: int, dim: int, word: int, taken: int
) -> None:
    assert QSGD(kind="qsgd", levels=s).build(dim).message_bytes(dim, word) == taken
