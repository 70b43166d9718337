"""The min-norm point: against SciPy, closed forms, rational arithmetic, and the optimality
conditions of any hull.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedcore.algorithms.min_norm import TOLERANCE, inner_products, min_norm, unit_lengths
from fedcore.lazy import LazyModule

optimize: Any = LazyModule("scipy.optimize")


def weights_of(vectors: np.ndarray, centre: np.ndarray | None = None, epsilon: float = 1.0) -> np.ndarray:
    centre = np.full(len(vectors), 1 / len(vectors)) if centre is None else centre
    return min_norm(torch.from_numpy(vectors @ vectors.T), torch.from_numpy(centre), epsilon).numpy()


def hull(seed: int, count: int, dim: int, *, spread: float = 1.0, offset: float = 0.0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, dim)) * draw.lognormal(0, spread, (count, 1)) + offset * draw.normal(
        size=dim
    )


@pytest.mark.parametrize(("count", "dim"), [(1, 3), (2, 5), (7, 30), (12, 4), (60, 300)])
def test_min_norm_point_is_the_one_that_nonnegative_least_squares_finds(count: int, dim: int) -> None:
    """The minimiser of |sum_i w_i g_i|^2 + (sum_i w_i - 1)^2 over w >= 0 is a multiple of
    lambda.
    """
    vectors = hull(count, count, dim, offset=1.0)
    found, _ = optimize.nnls(
        np.vstack([vectors.T, np.ones(count)]), np.append(np.zeros(dim), 1.0), maxiter=10_000
    )
    np.testing.assert_allclose(
        weights_of(vectors) @ vectors, found / found.sum() @ vectors, rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("seed", range(5))
def test_min_norm_point_of_two_vectors_has_the_closed_form(seed: int) -> None:
    first, second = hull(seed, 2, 3, offset=1.0)
    share = np.clip((second @ second - first @ second) / ((first - second) @ (first - second)), 0, 1)
    np.testing.assert_allclose(weights_of(np.array([first, second])), [share, 1 - share], rtol=0, atol=1e-12)


def test_weights_of_orthogonal_vectors_fall_with_the_squared_length() -> None:
    lengths = np.array([1.0, 2.0, 5.0, 0.5])
    np.testing.assert_allclose(weights_of(np.diag(lengths)), lengths**-2 / (lengths**-2).sum(), rtol=1e-12)


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    dim=st.integers(1, 8),
    epsilon=st.sampled_from([0.0, 0.03, 0.2, 1.0]),
    repeat=st.booleans(),
)
@example(
    seed=8399, count=2, dim=5, epsilon=1.0, repeat=False
)  # the null direction of two weights, known to rounding only
@example(seed=2896, count=9, dim=5, epsilon=0.2, repeat=False)  # a weight beside its bound by rounding
@example(seed=1649, count=6, dim=8, epsilon=1.0, repeat=False)  # nearly parallel vectors
@settings(max_examples=60)
def test_min_norm_point_satisfies_the_optimality_conditions(
    seed: int, count: int, dim: int, epsilon: float, repeat: bool
) -> None:
    """Feasible.

    Entries that could give weight have no steeper slope than entries that could take it.
    """
    vectors = hull(seed, count, dim, spread=2.0, offset=float(seed % 3))
    if repeat:
        vectors[count // 2 :] = vectors[0]
    centre = np.random.default_rng(seed).dirichlet(np.ones(count))
    low, high = np.maximum(centre - epsilon, 0), np.minimum(centre + epsilon, 1)
    weights = weights_of(vectors, centre, epsilon)
    assert abs(weights.sum() - 1) < 1e-12
    assert (weights >= low).all()
    assert (weights <= high).all()
    slope = vectors @ (weights @ vectors) / (vectors**2).sum(1).max()
    gives, takes = weights > low, weights < high
    if gives.any() and takes.any():
        assert slope[gives].max() - slope[takes].min() < 1e-10


def test_a_zero_vector_is_the_shortest() -> None:
    vectors = np.vstack([hull(0, 3, 4), np.zeros(4)])
    assert np.linalg.norm(weights_of(vectors) @ vectors) < 1e-7
    np.testing.assert_allclose(weights_of(np.zeros((3, 4))), np.full(3, 1 / 3), rtol=1e-12)


def test_min_norm_weights_of_equal_vectors_stay_at_the_centre() -> None:
    centre = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(weights_of(np.ones((3, 4)), centre), centre, rtol=1e-12)


def test_vectors_that_are_not_finite_have_no_min_norm_point() -> None:
    gram = torch.tensor([[torch.inf, 0.0], [0.0, 1.0]])
    assert min_norm(gram, torch.full((2,), 0.5)).isnan().all()


def test_min_norm_point_is_the_same_every_time() -> None:
    vectors = hull(3, 40, 20)
    np.testing.assert_array_equal(weights_of(vectors), weights_of(vectors))


def test_inner_products_are_summed_in_double_precision() -> None:
    vectors = torch.randn(3, 70_000, generator=torch.Generator().manual_seed(0))
    wide = vectors.double()
    torch.testing.assert_close(inner_products(vectors[:2], vectors), wide[:2] @ wide.T, rtol=1e-12, atol=1e-9)


def test_a_zero_vector_keeps_its_length() -> None:
    assert unit_lengths(torch.tensor([[4.0, 0.0], [0.0, 0.0]])).tolist() == [0.5, 0.0]


Numbers = list[Fraction]


def nearly_parallel(seed: int, count: int, distance: float) -> np.ndarray:
    """Vectors this far from a common one.

    A third of them of one length, a third with their shortest point inside the hull.
    """
    draw = np.random.default_rng(seed)
    common = np.append(1.0, np.zeros(3))
    apart = draw.normal(size=(count, 4))
    apart[:, 0] *= (1.0, distance, 0.0)[seed % 3]
    vectors = common + distance * (apart - apart.mean(0) * (seed % 3 == 2))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if seed % 3 == 1 else vectors


def solved(rows: list[Numbers]) -> Numbers | None:
    """x of [A | b] `rows`, exactly, by elimination; None if A is singular."""
    for column in range(len(rows)):
        pivot = next((row for row in range(column, len(rows)) if rows[row][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [entry / rows[column][column] for entry in rows[column]]
        for row in range(len(rows)):
            if row != column:
                rows[row] = [
                    entry - rows[row][column] * lead
                    for entry, lead in zip(rows[row], rows[column], strict=True)
                ]
    return [row[-1] for row in rows]


def stationary(gram: list[Numbers], bounds: Sequence[tuple[Fraction, Fraction]]) -> Iterator[Numbers]:
    """The feasible points that are stationary with each weight free or at one of its bounds."""
    for held in product((None, 0, 1), repeat=len(gram)):
        fixed = {i: bounds[i][side] for i, side in enumerate(held) if side is not None}
        free = [i for i in range(len(gram)) if i not in fixed]
        rows = [
            [
                *(gram[i][j] for j in free),
                Fraction(-1),
                -sum((gram[i][j] * w for j, w in fixed.items()), Fraction()),
            ]
            for i in free
        ]
        found = (
            solved([*rows, [*(Fraction(1) for _ in free), Fraction(), 1 - sum(fixed.values(), Fraction())]])
            if free
            else []
        )
        if found is None or (not free and sum(fixed.values()) != 1):
            continue
        weights = fixed | dict(zip(free, found, strict=False))
        if all(low <= weights[i] <= high for i, (low, high) in enumerate(bounds)):
            yield [weights[i] for i in range(len(gram))]


@pytest.mark.parametrize("distance", [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("epsilon", [1.0, 0.125])
def test_min_norm_point_of_nearly_parallel_vectors_is_exact(
    count: int, distance: float, epsilon: float
) -> None:
    """Of all stationary points, in rational arithmetic, the shortest.

    Weights as sharply as the curvature along the hull tells them.
    """
    for seed in range(9):
        vectors = nearly_parallel(seed, count, distance)
        centre = np.array([0.25, 0.75]) if count == 2 else np.array([0.25, 0.25, 0.5])
        weights = [Fraction(weight) for weight in weights_of(vectors, centre, epsilon).tolist()]
        exact = [[Fraction(entry) for entry in vector] for vector in vectors.tolist()]
        gram = [
            [sum((a * b for a, b in zip(left, right, strict=True)), Fraction()) for right in exact]
            for left in exact
        ]
        bounds = [(Fraction(max(c - epsilon, 0)), Fraction(min(c + epsilon, 1))) for c in centre.tolist()]

        def square(point: Numbers, gram: list[Numbers] = gram) -> Fraction:
            return sum(
                (a * b * gram[i][j] for i, a in enumerate(point) for j, b in enumerate(point)), Fraction()
            )

        best = min(stationary(gram, bounds), key=square)
        longest = max(gram[i][i] for i in range(count))
        slopes = [
            sum((a * b for a, b in zip(row, weights, strict=True)), Fraction()) / longest for row in gram
        ]
        gives = [
            slope
            for slope, weight, (low, _) in zip(slopes, weights, bounds, strict=True)
            if weight > low + TOLERANCE
        ]
        takes = [
            slope
            for slope, weight, (_, high) in zip(slopes, weights, bounds, strict=True)
            if weight < high - TOLERANCE
        ]
        assert abs(float(sum(weights, Fraction())) - 1) < 1e-15
        assert not (gives and takes) or float(max(gives) - min(takes)) < TOLERANCE
        assert float((square(weights) - square(best)) / longest) < TOLERANCE
        if count == 2:
            curvature = (gram[0][0] - 2 * gram[0][1] + gram[1][1]) / longest
            assert abs(weights[0] - best[0]) < TOLERANCE / curvature


def test_a_bound_that_is_downhill_is_reached_however_near_the_vectors_are() -> None:
    """The second is shorter by 1e-7 of their length, of which floats keep nine digits, their
    distance squared but two.
    """
    vectors = np.array([[1.0, 1e-7], [1 - 1e-7, 0.0]])
    assert weights_of(vectors).tolist() == pytest.approx([0, 1], abs=1e-15)


@pytest.mark.parametrize("count", [12, 60])
@pytest.mark.parametrize("distance", [1e-8, 1e-6, 1e-4])
def test_optimality_conditions_hold_of_many_nearly_parallel_vectors(count: int, distance: float) -> None:
    for seed in range(3):
        vectors = nearly_parallel(seed, count, distance)
        weights = weights_of(vectors)
        exact = [[Fraction(entry) for entry in vector] for vector in vectors.tolist()]
        shares = list(map(Fraction, weights.tolist()))
        point = [
            sum((share * vector[i] for share, vector in zip(shares, exact, strict=True)), Fraction())
            for i in range(4)
        ]
        slopes = np.array(
            [
                float(sum((a * b for a, b in zip(vector, point, strict=True)), Fraction()) - 1)
                for vector in exact
            ]
        )
        assert slopes[weights > TOLERANCE].max() - slopes.min() < TOLERANCE * (vectors**2).sum(1).max()
        assert abs(weights.sum() - 1) < 1e-13
