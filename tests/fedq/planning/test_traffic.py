"""Mean traffic of clients that missed rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedq.planning.traffic import _mean_made_up


@given(st.integers(1, 40), st.floats(0.01, 1), st.floats(1, 50))
def test_the_mean_of_what_a_client_makes_up_is_that_over_all_gaps(
    rounds: int, odds: float, most: float
) -> None:
    """T - g of the pairs of rounds are g apart, each the ends of a gap with odds s^2 q^(g-1)."""
    longhand = sum(
        (rounds - gap) * odds**2 * (1 - odds) ** (gap - 1) * min(gap, most) for gap in range(1, rounds)
    )
    assert _mean_made_up(rounds, odds, most) == pytest.approx(longhand, rel=1e-9, abs=1e-9)
