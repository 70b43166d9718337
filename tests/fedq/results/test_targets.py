"""Costs of which some are only known to be larger than a number."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from fedq.results.targets import restricted

COSTS = some.lists(some.floats(1, 1000), min_size=1, max_size=12)


@given(costs=COSTS, budget=some.floats(1, 1000))
def test_nothing_that_was_not_seen_counts(costs: list[float], budget: float) -> None:
    """Two tables that differ only beyond the budget, where runs are not watched, have the same figures."""
    reached = {seed: cost for seed, cost in enumerate(costs) if cost <= budget}
    unreached = {seed: budget for seed, cost in enumerate(costs) if cost > budget}
    (found,), horizon = restricted([reached], [unreached])
    assert found == {seed: min(cost, budget) for seed, cost in enumerate(costs)}
    assert horizon == (budget if unreached else inf)


def test_the_horizon_is_the_shortest_run_that_did_not_reach_the_target() -> None:
    found, horizon = restricted([{0: 3.0, 1: 9.0}, {0: 2.0}], [{}, {1: 5.0, 2: 7.0}])
    assert horizon == 5
    assert found == [{0: 3.0, 1: 5.0}, {0: 2.0, 1: 5.0, 2: 5.0}]


def test_the_mean_is_the_area_under_the_share_that_has_not_reached_it() -> None:
    """The restricted mean is the integral of the Kaplan-Meier curve up to the horizon: no run is censored
    before it, so that the curve is the share.
    """
    costs, horizon = np.random.default_rng(0).exponential(10, 200), 12.0
    (found,), _ = restricted(
        [{seed: cost for seed, cost in enumerate(costs) if cost <= horizon}],
        [{seed: horizon for seed, cost in enumerate(costs) if cost > horizon}],
    )
    times = np.linspace(0, horizon, 100_001)
    share = (costs > times[:, None]).mean(1)
    assert np.mean(list(found.values())) == pytest.approx(np.trapezoid(share, times), abs=1e-3)
