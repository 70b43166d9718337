"""Natural compression: unbiased powers of two within the variance of the paper, in 9 or 12 bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcore.compression.natural import Natural, RoundToPowers

GRID = 4_000
entries = st.floats(-1e6, 1e6).filter(lambda entry: entry == 0 or abs(entry) > 1e-6)


def over_all_draws(entry: float) -> torch.Tensor:
    """C [GRID] of one number, for every u of an equally spaced grid."""
    u = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    return RoundToPowers().compress(torch.full((GRID,), entry, dtype=torch.float64), u)


@given(entries)
def test_natural_is_unbiased_with_a_variance_of_an_eighth_at_most(entry: float) -> None:
    sent = over_all_draws(entry)
    assert float(sent.mean()) == pytest.approx(entry, rel=1 / GRID, abs=0)
    variance = float((sent - entry).square().mean())
    assert variance <= entry**2 / 8 * (1 + 8 / GRID)


@given(entries)
def test_natural_sends_one_of_the_two_powers_beside_a_number(entry: float) -> None:
    sent = over_all_draws(entry)
    if entry == 0:
        assert not sent.any()
        return
    mantissa, _ = torch.frexp(sent.abs())
    assert (mantissa == 0.5).all()
    assert (sent.sign() == torch.tensor(entry).sign()).all()
    assert (sent.abs() <= 2 * abs(entry)).all()
    assert (2 * sent.abs() > abs(entry)).all()


def test_the_worst_case_of_the_variance_is_reached() -> None:
    """|v| = 4/3 of a power of two: E (C - v)^2 = v^2 / 8."""
    entry = 4 / 3
    assert float((over_all_draws(entry) - entry).square().mean()) == pytest.approx(entry**2 / 8, rel=1e-3)


def test_powers_of_two_stay_and_what_is_not_finite_arrives_as_not_a_number() -> None:
    message = torch.tensor([4.0, -0.25, 0.0, -0.0, 1024.0])
    drawn = torch.zeros(5, dtype=torch.float64)
    torch.testing.assert_close(RoundToPowers().compress(message, drawn), message, rtol=0, atol=0)
    odd = torch.tensor([float("inf"), float("-inf"), float("nan")])
    assert RoundToPowers().compress(odd, torch.zeros(3, dtype=torch.float64)).isnan().all()


@pytest.mark.parametrize(("word", "size"), [(4, 1125), (8, 1500)])
def test_a_number_takes_a_sign_and_an_exponent(word: int, size: int) -> None:
    assert Natural(kind="natural").build(1000).message_bytes(1000, word) == size
