"""Rand-k: unbiased when scaled, a contraction when not, and only values on the wire."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore.compression.rand_k import RandK
from fedcore.core import Compressor
from fedcore.random import generator

V = torch.tensor([3.0, -1.0, 0.0, 2.5, -4.0, 0.5], dtype=torch.float64)


def keep(k: int, *, error_feedback: bool = False) -> Compressor:
    return RandK(kind="rand_k", k=k, error_feedback=error_feedback).build(len(V))


def all_outcomes(compressor: Compressor, k: int) -> Tensor:
    """C(v) for every set of k indices, which are equally likely."""
    drawn = torch.tensor(list(combinations(range(len(V)), k)))
    return compressor.compress(V.expand(len(drawn), -1), drawn)


@pytest.mark.parametrize("k", range(1, len(V) + 1))
def test_mean_of_rand_k_is_the_message_and_the_variance_that_of_the_paper(k: int) -> None:
    """E C(v) = v and E |C(v) - v|^2 = (D/k - 1) |v|^2 (Wangni et al., 2018, with equal
    probabilities).
    """
    outcomes = all_outcomes(keep(k), k)
    torch.testing.assert_close(outcomes.mean(0), V, rtol=1e-12, atol=1e-12)
    variance = (outcomes - V).square().sum(-1).mean()
    torch.testing.assert_close(variance, (len(V) / k - 1) * V.square().sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("k", range(1, len(V) + 1))
def test_with_error_feedback_it_contracts_in_the_mean_by_one_minus_k_over_d(k: int) -> None:
    """E |C(v) - v|^2 = (1 - k/D) |v|^2 (Stich et al., 2018, Lemma A.1)."""
    lost = (all_outcomes(keep(k, error_feedback=True), k) - V).square().sum(-1).mean()
    torch.testing.assert_close(lost, (1 - k / len(V)) * V.square().sum(), rtol=1e-12, atol=1e-12)


def test_every_set_of_indices_is_equally_likely() -> None:
    """Each of the 15 counts is binomial.

    5 standard deviations hold for all of them but once in 10^5 choices of the seed.
    """
    rounds, sets = 6_000, comb(len(V), 2)
    counts: dict[tuple[int, ...], int] = {}
    for round in range(rounds):
        indices = tuple(sorted(keep(2).sample(generator(0, "test", round), len(V)).tolist()))  # type: ignore[union-attr]
        counts[indices] = counts.get(indices, 0) + 1
    assert set(counts) == set(combinations(range(len(V)), 2))
    deviation = np.sqrt(rounds / sets * (1 - 1 / sets))
    assert max(abs(count - rounds / sets) for count in counts.values()) < 5 * deviation


def test_an_entry_that_is_not_finite_arrives_if_it_is_kept() -> None:
    message = torch.tensor([[1.0, float("nan"), float("inf")]] * 2)
    received = keep(1).compress(message, torch.tensor([[0], [2]]))
    assert received.tolist() == [[3.0, 0.0, 0.0], [0.0, 0.0, float("inf")]]
    assert keep(1).compress(message, torch.tensor([[1], [1]])).isnan().sum() == 2


def test_a_message_costs_its_values_alone() -> None:
    assert keep(10).message_bytes(1_000, 4) == 40
    assert keep(10).message_bytes(1_000, 8) == 80
    assert keep(1_000).message_bytes(1_000, 4) == 4_000
