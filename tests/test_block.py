"""Counts that shares stand for, against rational arithmetic."""

from fractions import Fraction
from math import ceil

import pytest

from fedcore.block import MAX_CLIENTS, MAX_ROUNDS, ceil_share
from fedcore.compression.top_k import TopK
from fedcore.systems.participation import Uniform

COUNTS = (*range(1_001), MAX_ROUNDS - 1, MAX_ROUNDS, 10 * MAX_CLIENTS - 1, 10 * MAX_CLIENTS)


@pytest.mark.parametrize("parts", [100, 1_000])
def test_the_ceiling_of_a_share_is_that_of_the_decimal(parts: int) -> None:
    counts = COUNTS if parts == 100 else COUNTS[::7]
    wrong = [
        (part, n)
        for part in range(parts + 1)
        for n in counts
        if ceil_share(part / parts, n) != ceil(Fraction(part, parts) * n)
    ]
    assert wrong == []


def test_of_a_third_written_out_it_is_that_of_a_third() -> None:
    assert [ceil_share(share / 3, 300) for share in (1, 2, 3)] == [100, 200, 300]
    assert ceil_share(5 / 6, 600) == 500


def test_counts_that_are_rounded_are_nearest_to_the_share() -> None:
    """Floats decide ties only: 0.14 of 75 is 10.5, for which 11 is as near as 10."""
    for part in range(1, 101):
        cohorts, kept = Uniform(kind="uniform", fraction=part / 100), TopK(kind="top_k", ratio=part / 100)
        for n in range(1, 300):
            for count in (cohorts.cohort_size(n), kept.kept(n)):
                assert abs(count - max(Fraction(1), Fraction(part * n, 100))) <= Fraction(1, 2)
