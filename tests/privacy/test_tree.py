"""DP-FTRL: the noise of the tree, the sensitivity by brute force, and its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcore.privacy import PRIVACY, PrivateRun
from fedcore.privacy.tree import TreeMean, squared_sensitivity
from fedcore.simulation.simulation import Simulation
from fedcore.systems.participation import PARTICIPATIONS
from tests.builders.specifications import SYNTHETIC, Document, specification
from tests.privacy.test_client_level import cohort

DIM = 20_000


def noises(rounds: int) -> list[torch.Tensor]:
    mean = TreeMean(clip_norm=2.0, noise_multiplier=1.5, expected=4.0)
    nothing = torch.zeros(4, DIM, dtype=torch.float64)
    return [
        mean.of_round(7, round).combine(nothing, cohort(4), {}).direction for round in range(1, rounds + 1)
    ]


def test_the_noise_of_all_rounds_so_far_has_a_part_for_each_power_of_two() -> None:
    """Kairouz et al.: t rounds carry the noise of as many nodes as t has bits."""
    total = torch.zeros(DIM, dtype=torch.float64)
    for round, noise in enumerate(noises(16), 1):
        total = total + noise
        expected = (1.5 * 2.0 / 4) ** 2 * round.bit_count()
        assert float(total.var()) == pytest.approx(expected, rel=5 * (2 / DIM) ** 0.5)


def test_sums_that_share_no_node_have_independent_noise() -> None:
    until = torch.cumsum(torch.stack(noises(8)), dim=0)
    within = torch.corrcoef(torch.stack([until[3], until[7]]))[0, 1]
    shared = torch.corrcoef(torch.stack([until[3], until[4]]))[0, 1]
    assert abs(float(within)) < 5 / DIM**0.5
    assert float(shared) == pytest.approx(1 / 2**0.5, abs=5 / DIM**0.5)


def run(last: int, clients: int = 6, **participation: object) -> PrivateRun:
    return PrivateRun(PARTICIPATIONS.validate(participation), clients, last)


def by_definition(takes_part: list[list[bool]], rounds: int) -> int:
    """Over all nodes that some prefix of the rounds uses, listed by adding powers of two."""
    nodes = set()
    for t in range(1, rounds + 1):
        start = 0
        for power in sorted((1 << bit for bit in range(t.bit_length()) if t >> bit & 1), reverse=True):
            nodes.add((start, start + power))
            start += power
    return max(sum(sum(row[first:last]) ** 2 for first, last in nodes) for row in takes_part)


@pytest.mark.parametrize("rounds", [1, 2, 7, 8, 13])
def test_the_sensitivity_is_that_of_all_nodes_counted_one_by_one(rounds: int) -> None:
    drawn = np.random.default_rng(rounds).random((6, 13)) < 0.4
    listed = [np.flatnonzero(column).tolist() for column in drawn.T]
    trace = run(13, kind="trace", rounds=listed)
    assert squared_sensitivity(trace, rounds) == by_definition(drawn.tolist(), rounds)
    assert squared_sensitivity(run(13, kind="full"), rounds) == by_definition([[True] * 13], rounds)
    blocks = [[(2 * round + place) % 6 for place in range(2)] for round in range(13)]
    cyclic = [[client in block for block in blocks] for client in range(6)]
    found = squared_sensitivity(run(13, kind="cyclic", clients_per_round=2), rounds)
    assert found == by_definition(cyclic, rounds)


def test_a_client_that_takes_part_once_pays_for_the_nodes_above_it() -> None:
    """At most one node of each level."""
    once = run(64, clients=64, kind="cyclic", clients_per_round=1)
    assert [squared_sensitivity(once, rounds) for rounds in (1, 2, 4, 8, 64)] == [1, 2, 3, 4, 7]


def test_tree_of_one_round_costs_what_the_round_costs_without_it() -> None:
    full, fields = run(8, kind="full"), {"noise_multiplier": 2.0}
    tree, plain = (PRIVACY.validate({"kind": kind, **fields}) for kind in ("dp_ftrl", "client_level"))
    assert tree.epsilon(full, 1) == plain.epsilon(full, 1)
    assert tree.epsilon(full, 0) == 0.0


def test_rounds_are_resumed_with_the_same_noise() -> None:
    document: Document = {
        "participation": {"kind": "cyclic", "clients_per_round": 4, "weighting": "uniform"},
        "privacy": {"kind": "dp_ftrl", "noise_multiplier": 1.0},
    }
    spec = specification({**SYNTHETIC, **document})
    whole, first, second = (Simulation(spec, 2) for _ in range(3))
    while not whole.finished:
        whole.advance()
    for _ in range(3):
        first.advance()
    second.restore(first.checkpoint())
    second.advance()
    for name, expected in whole.model().items():
        assert torch.equal(second.model()[name], expected)
