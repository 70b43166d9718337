"""Robust aggregators, against their papers written out client by client, and their limit cases."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from fedcore.algorithms import AGGREGATORS
from fedcore.algorithms.robust import (
    MedianAggregator,
    RobustAggregator,
    TrimmedMean,
    squared_distances,
)
from fedcore.core import Aggregate, Aggregator, Cohort, CohortNeed, Vectors
from fedcore.errors import SpecificationError
from fedcore.simulation.local_run import run
from tests.builders.specifications import SYNTHETIC, Document, specification

Floats = NDArray[np.float64]
HONEST, MALICIOUS, DIM = 9, 2, 40


def deltas(count: int = HONEST + MALICIOUS, seed: int = 0) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cohort_of(count: int, weights: Tensor | None = None) -> Cohort:
    equal = torch.full((count,), 1 / count, dtype=torch.float64)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    return Cohort(
        torch.arange(count), equal if weights is None else weights, equal, equal, count, equal, equal, order
    )


def aggregator(kind: str, **fields: Any) -> Aggregator:
    return AGGREGATORS.validate({"kind": kind, **fields}).build()


def combined(seen: Tensor, kind: str, state: Vectors | None = None, **fields: Any) -> Aggregate:
    made = aggregator(kind, **fields)
    cohort = cohort_of(len(seen), torch.full((len(seen),), 1 / len(seen), dtype=seen.dtype))
    return made.combine(seen, cohort, made.start(seen[0]) if state is None else state)


def direction(seen: Tensor, kind: str, **fields: Any) -> Tensor:
    return combined(seen, kind, **fields).direction


def krum_by_hand(vectors: Floats, f: int) -> int:
    """Blanchard et al., Krum: i with the least sum over its n - f - 2 closest vectors."""
    n = len(vectors)
    scores = []
    for i in range(n):
        distances = sorted(float(((vectors[i] - vectors[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(distances[: max(1, n - f - 2)]))
    return int(np.argmin(scores))


def bulyan_by_hand(vectors: Floats, f: int) -> Floats:
    """El Mhamdi et al., Bulyan: theta = n - 2 f selected, of which beta = theta - 2 f per entry."""
    left = list(vectors)
    selected = [left.pop(krum_by_hand(np.array(left), f)) for _ in range(len(vectors) - 2 * f)]
    beta = len(selected) - 2 * f
    columns = []
    for column in np.array(selected).T:
        median = np.median(column)
        closest = min(
            combinations(column, beta), key=lambda chosen: sum(abs(value - median) for value in chosen)
        )
        columns.append(np.mean(closest))
    return np.array(columns)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_median_is_that_of_every_coordinate(count: int) -> None:
    seen = deltas(count)
    expected = torch.from_numpy(np.median(seen.numpy(), axis=0))
    torch.testing.assert_close(direction(seen, "median"), expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(("trimmed", "left_out"), [(0.0, 0), (0.1, 1), (0.2, 2), (0.49, 4)])
def test_the_trimmed_mean_leaves_out_as_many_values_at_each_end(trimmed: float, left_out: int) -> None:
    seen = deltas(10)
    ordered = np.sort(seen.numpy(), axis=0)[left_out : 10 - left_out]
    expected = torch.from_numpy(ordered.mean(axis=0))
    torch.testing.assert_close(
        direction(seen, "trimmed_mean", trimmed=trimmed), expected, rtol=1e-14, atol=1e-15
    )


@pytest.mark.parametrize("count", [3, 7, 11])
def test_krum_takes_the_change_with_the_closest_neighbours(count: int) -> None:
    seen = deltas(count)
    chosen = krum_by_hand(seen.numpy(), int(0.2 * count))
    assert torch.equal(direction(seen, "krum", malicious=0.2), seen[chosen])


def test_multi_krum_of_all_clients_is_their_mean() -> None:
    seen = deltas()
    torch.testing.assert_close(
        direction(seen, "krum", selected=len(seen)), seen.mean(dim=0), rtol=1e-14, atol=1e-15
    )


@pytest.mark.parametrize(("count", "malicious"), [(11, 0.2), (8, 0.15), (5, 0.0)])
def test_bulyan_averages_around_the_median_of_what_krum_selects(count: int, malicious: float) -> None:
    seen = deltas(count)
    expected = torch.from_numpy(bulyan_by_hand(seen.numpy(), int(malicious * count)))
    torch.testing.assert_close(
        direction(seen, "bulyan", malicious=malicious), expected, rtol=1e-13, atol=1e-14
    )


def test_the_geometric_median_is_where_unit_vectors_to_all_clients_sum_to_zero() -> None:
    seen = deltas()
    found = direction(seen, "geometric_median", iterations=1000)
    away = seen - found
    assert float((away / away.norm(dim=1, keepdim=True)).sum(dim=0).norm()) < 1e-12


def test_the_geometric_median_of_a_line_is_the_middle_client() -> None:
    seen = torch.tensor([[0.0, 0.0], [1.0, 1.0], [50.0, 50.0]], dtype=torch.float64)
    found = direction(seen, "geometric_median", iterations=1000, smoothing=1e-9)
    torch.testing.assert_close(found, seen[1], rtol=0, atol=1e-6)


def test_the_geometric_median_begins_at_the_weighted_mean() -> None:
    seen, weights = deltas(3), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    mean = weights @ seen
    inverse = weights / (seen - mean).norm(dim=1)
    expected = (inverse @ seen) / inverse.sum()
    made = aggregator("geometric_median", iterations=1)
    found = made.combine(seen, cohort_of(3, weights), {}).direction
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)


def test_centred_clipping_moves_from_the_last_aggregate() -> None:
    first, second = deltas(5, 1), deltas(5, 2)
    centre = np.zeros(DIM)
    state = aggregator("centred_clipping").start(first[0])
    for seen in (first, second):
        result = combined(seen, "centred_clipping", state, radius=0.7, iterations=2)
        for _ in range(2):
            moves = [(row - centre) * min(1, 0.7 / np.linalg.norm(row - centre)) for row in seen.numpy()]
            centre = centre + np.mean(moves, axis=0)
        torch.testing.assert_close(result.direction, torch.from_numpy(centre), rtol=1e-13, atol=1e-15)
        state = result.aggregator_state


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("trimmed_mean", {"trimmed": 0.0}),
        ("centred_clipping", {"radius": 1e6}),
        ("norm_bounding", {"radius": 1e6}),
        ("bulyan", {"malicious": 0.0}),
        ("mean", {}),
    ],
)
def test_without_malicious_clients_to_withstand_an_aggregator_is_the_mean(
    kind: str, fields: dict[str, Any]
) -> None:
    seen = deltas()
    made = aggregator(kind, **fields)
    sums = made.weighted_sums(cohort_of(len(seen)))
    result = made.combine(
        seen if sums is None else sums @ seen, cohort_of(len(seen)), made.start(seen[0])
    ).direction
    torch.testing.assert_close(result, seen.mean(dim=0), rtol=1e-12, atol=1e-14)


ROBUST: tuple[tuple[str, dict[str, Any]], ...] = (
    ("median", {}),
    ("trimmed_mean", {"trimmed": 0.2}),
    ("krum", {"malicious": 0.2}),
    ("krum", {"malicious": 0.2, "selected": 5}),
    ("bulyan", {"malicious": 0.2}),
    ("geometric_median", {"iterations": 100}),
    ("centred_clipping", {"radius": 5.0}),
    ("centred_clipping", {"radius": 5.0, "iterations": 3}),
    ("norm_bounding", {"radius": 5.0}),
)


@pytest.mark.parametrize(("kind", "fields"), ROBUST)
def test_clients_that_send_anything_cannot_move_the_aggregate_far(kind: str, fields: dict[str, Any]) -> None:
    honest = deltas(HONEST)
    results = []
    for size in (1e3, 1e9):
        seen = torch.cat([honest, torch.full((MALICIOUS, DIM), size, dtype=torch.float64)])
        results.append(direction(seen, kind, **fields))
    assert float((results[0] - honest.mean(dim=0)).norm()) < 2 * float(honest.norm(dim=1).max())
    # However far they go: 10^6 times farther, the aggregate hardly differs.
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0.05)


@pytest.mark.parametrize(("kind", "fields"), ROBUST)
def test_an_aggregate_does_not_depend_on_the_order_of_clients(kind: str, fields: dict[str, Any]) -> None:
    seen, order = deltas(), torch.randperm(HONEST + MALICIOUS, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        direction(seen[order], kind, **fields), direction(seen, kind, **fields), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize(("kind", "fields"), ROBUST)
def test_coefficients_give_the_aggregate_or_are_undefined(kind: str, fields: dict[str, Any]) -> None:
    seen = deltas()
    result = combined(seen, kind, **fields)
    if kind in {"median", "trimmed_mean", "bulyan"}:
        assert bool(result.coefficients.isnan().all())
    else:
        torch.testing.assert_close(result.coefficients @ seen, result.direction, rtol=1e-12, atol=1e-13)


ANYTHING = (math.nan, math.inf, -math.inf, 1e200, -1e200, 1e3, 0.0)
SINGLE = (math.nan, math.inf, 1e30, -3e38, 1e3)
"""Entries of the vectors that malicious clients send; of float32 the second."""


def attacked(seed: int, n: int, f: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Changes [n, dim] of which the last f are anything, in random order; and those of the others."""
    rng = np.random.default_rng(seed)
    honest = torch.from_numpy(rng.normal(size=(n - f, dim)) * rng.choice([1e-3, 1.0, 50.0])).to(dtype)
    sent = rng.choice(ANYTHING if dtype == torch.float64 else SINGLE, size=(f, dim))
    # Half of the vectors have the same entry everywhere, as colluding clients may.
    sent[rng.random(f) < 0.5] = sent[:1, :1] if f else 0.0
    seen = torch.cat([honest, torch.from_numpy(sent).to(dtype)])
    return seen[torch.from_numpy(rng.permutation(n))], honest


CASES = [
    pytest.param(seed, dtype, id=f"{seed} {dtype}")
    for seed in range(24)
    for dtype in (torch.float64, torch.float32)
]


@pytest.mark.parametrize(("seed", "dtype"), CASES)
def test_aggregate_is_within_the_bound_of_its_rule_whatever_a_minority_sends(
    seed: int, dtype: torch.dtype
) -> None:
    f, dim = seed % 4, 1 + seed % 7
    n = 4 * f + 3 + seed % 3
    seen, honest = attacked(seed, n, f, dim, dtype)
    share, slack = f / n + 1e-9, 1e-12 if dtype == torch.float64 else 1e-4
    low, high = honest.amin(dim=0), honest.amax(dim=0)
    room = slack * honest.abs().max()
    for kind, fields in (("median", {}), ("trimmed_mean", {"trimmed": share})):
        found = direction(seen, kind, **fields)
        assert bool(((low - room <= found) & (found <= high + room)).all()), kind
    for selected in (1, f + 1):
        krum = combined(seen, "krum", malicious=share, selected=selected)
        own = krum.coefficients.nonzero().flatten()
        assert len(own) == selected
        torch.testing.assert_close(krum.direction, seen[own].mean(dim=0), rtol=slack, atol=0)
    # Every value of Bulyan is the mean of some that were received.
    bulyan = direction(seen, "bulyan", malicious=share)
    finite = seen[seen.isfinite().all(dim=1)]
    kept = len(finite) - 4 * (f - (n - len(finite)))
    for value, column in zip(bulyan, finite.sort(dim=0).values.T, strict=True):
        means = np.array([np.mean(chosen) for chosen in combinations(column.tolist(), kept)])
        assert np.abs(means - float(value)).min() <= float(room)
    centre = honest.mean(dim=0)
    radius = float((honest - centre).norm(dim=1).max())
    median = direction(seen, "geometric_median", iterations=200, smoothing=1e-9)
    assert float((median - centre).norm()) <= (2 / (1 - 2 * f / n)) * radius + float(room)
    # Each client moves the aggregate by its part of the radius at most.
    for kind in ("centred_clipping", "norm_bounding"):
        assert float(direction(seen, kind, radius=0.3).norm()) <= 0.3 * (1 + slack)


@pytest.mark.parametrize(("kind", "fields"), ROBUST)
def test_changes_that_are_not_finite_are_left_out_and_counted(kind: str, fields: dict[str, Any]) -> None:
    honest = deltas(HONEST)
    broken = torch.full((1, DIM), 1.0, dtype=torch.float64)
    broken[0, 3] = torch.nan
    seen = torch.cat([honest[:4], broken, honest[4:]])
    # What clients that remain weigh in all stays the same.
    result = combined(seen, kind, **fields)
    made = aggregator(kind, **fields)
    weights = torch.full((HONEST,), 1 / HONEST, dtype=torch.float64)
    alone = made.combine(honest, cohort_of(HONEST, weights), made.start(honest[0]))
    torch.testing.assert_close(result.direction, alone.direction, rtol=1e-13, atol=1e-15)
    assert result.dropped is not None
    assert result.dropped.nonzero().flatten().tolist() == [4]
    if not bool(result.coefficients.isnan().any()):
        assert result.coefficients[4] == 0


@pytest.mark.parametrize(("kind", "fields"), ROBUST)
def test_the_model_stays_if_more_are_not_finite_than_a_rule_withstands(
    kind: str, fields: dict[str, Any]
) -> None:
    """Krum, Bulyan and the trimmed mean withstand 2 of 11 here, the others 5."""
    most = 2 if kind in {"krum", "bulyan", "trimmed_mean"} else 5
    for count in range(HONEST + MALICIOUS + 1):
        seen = deltas()
        seen[:count, 0] = torch.inf
        state = aggregator(kind, **fields).start(seen[0])
        result = combined(seen, kind, state, **fields)
        assert bool((result.direction == 0).all()) == (count > most), count
        assert result.dropped is not None
        assert int(result.dropped.sum()) == count
        if count > most:
            assert result.aggregator_state == state


def test_krum_withstands_a_share_of_the_clients_that_are_left() -> None:
    """Of 5 clients f = 1; without the one that overflows 4 are left, and 4 >= 2 * 0 + 3. Of 3 f = 0."""
    for count, moves in ((5, True), (3, False)):
        seen = deltas(count)
        seen[0] = torch.nan
        assert bool((direction(seen, "krum", malicious=0.2) != 0).any()) == moves


def test_a_bucket_with_a_change_that_is_left_out_counts_as_malicious() -> None:
    seen, order = deltas(), cohort_of(HONEST + MALICIOUS).order
    assert order is not None
    seen[order[0]] = torch.nan
    buckets = [seen[rows] for rows in torch.split(order, 2)]
    buckets[0] = buckets[0][1:]
    means = np.array([bucket.numpy().mean(axis=0) for bucket in buckets])
    found = combined(seen, "median", bucket_size=2)
    np.testing.assert_allclose(found.direction, np.median(means, axis=0), rtol=1e-13)
    # Three of six buckets are more than a median withstands.
    seen[order[2]] = seen[order[4]] = torch.nan
    assert bool((direction(seen, "median", bucket_size=2) == 0).all())


def test_a_bucketed_aggregator_with_a_method_that_buckets_do_not_pass_on_is_refused() -> None:
    class Watching(TrimmedMean):
        bucketed = False

        def needs(self) -> frozenset[CohortNeed]:
            return frozenset({"losses"})

    class WatchingSpec(MedianAggregator):
        def aggregator(self) -> RobustAggregator:
            return Watching(0.5)

    assert isinstance(WatchingSpec().build(), Watching)
    with pytest.raises(SpecificationError, match="means of buckets"):
        WatchingSpec(bucket_size=2).build()


OVERFLOWS: Document = {
    "problem": {
        "dataset": {
            "kind": "quadratic",
            "clients": [
                {"H": [[h]], "e": [h * k], "c": 0.0} for k, h in enumerate([1.0] * 4 + [1e3] + [1.0] * 5)
            ],
            "x0": [20.0],
        }
    },
    "local": {"lr": 0.5, "steps": 200},
    "rounds": 3,
    "name": "one client overflows",
    "evaluation": {"measures": [], "record_parameters": True},
}
"""Step size times curvature is 500 for client 4, whose local training overflows."""


@pytest.mark.parametrize(("kind", "fields"), ROBUST)
def test_a_client_that_overflows_does_not_end_the_run(kind: str, fields: dict[str, Any]) -> None:
    spec = specification(OVERFLOWS, aggregator={"kind": kind, **fields}, algorithm={"kind": "scaffold"})
    reports = list(run(spec))
    assert len(reports) == 3
    assert not reports[-1].diverged
    assert [report.extra["dropped_updates"] for report in reports] == [1, 1, 1]
    assert np.isfinite(reports[-1].extra["x"]).all()


def test_buckets_are_averaged_before_they_are_aggregated() -> None:
    seen, order = deltas(), cohort_of(HONEST + MALICIOUS).order
    assert order is not None
    means = np.array(
        [seen[order[start : start + 2]].numpy().mean(axis=0) for start in range(0, len(seen), 2)]
    )
    expected = torch.from_numpy(np.median(means, axis=0))
    torch.testing.assert_close(direction(seen, "median", bucket_size=2), expected, rtol=1e-13, atol=1e-14)


def test_one_bucket_of_all_clients_is_the_mean() -> None:
    seen = deltas()
    torch.testing.assert_close(
        direction(seen, "krum", bucket_size=len(seen)), seen.mean(dim=0), rtol=1e-13, atol=1e-14
    )


def test_distances_are_those_of_the_vectors() -> None:
    seen = deltas(6)
    torch.testing.assert_close(
        squared_distances(seen), torch.cdist(seen, seen).square(), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize(
    ("aggregator", "field"),
    [
        ({"kind": "trimmed_mean", "trimmed": 0.5}, "trimmed"),
        ({"kind": "bulyan", "malicious": 0.25}, "malicious"),
        ({"kind": "krum", "selected": 0}, "selected"),
        ({"kind": "median", "bucket_size": 0}, "bucket_size"),
    ],
)
def test_parameters_beyond_the_limit_of_an_aggregator_are_named(
    aggregator: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError, match=rf"aggregator\.\w+\.{field}"):
        specification(SYNTHETIC, aggregator=aggregator)
