"""The min-norm point: against SciPy, closed forms, and the optimality conditions of any hull."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from fedcore.algorithms.min_norm import inner_products, min_norm, unit_lengths


def weights_of(vectors: np.ndarray, centre: np.ndarray | None = None, epsilon: float = 1.0) -> np.ndarray:
    centre = np.full(len(vectors), 1 / len(vectors)) if centre is None else centre
    return min_norm(torch.from_numpy(vectors @ vectors.T), torch.from_numpy(centre), epsilon).numpy()


def hull(seed: int, count: int, dim: int, *, spread: float = 1.0, offset: float = 0.0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, dim)) * draw.lognormal(0, spread, (count, 1)) + offset * draw.normal(size=dim)


@pytest.mark.parametrize(("count", "dim"), [(1, 3), (2, 5), (7, 30), (12, 4), (60, 300)])
def test_it_is_the_point_that_nonnegative_least_squares_finds(count: int, dim: int) -> None:
    """The minimiser of |sum_i w_i g_i|^2 + (sum_i w_i - 1)^2 over w >= 0 is a multiple of lambda."""
    vectors = hull(count, count, dim, offset=1.0)
    found, _ = nnls(np.vstack([vectors.T, np.ones(count)]), np.append(np.zeros(dim), 1.0), maxiter=10_000)
    np.testing.assert_allclose(weights_of(vectors) @ vectors, found / found.sum() @ vectors, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_of_two_vectors_it_has_the_closed_form(seed: int) -> None:
    first, second = hull(seed, 2, 3, offset=1.0)
    share = np.clip((second @ second - first @ second) / ((first - second) @ (first - second)), 0, 1)
    np.testing.assert_allclose(weights_of(np.array([first, second])), [share, 1 - share], rtol=0, atol=1e-12)


def test_of_orthogonal_vectors_weights_fall_with_the_squared_length() -> None:
    lengths = np.array([1.0, 2.0, 5.0, 0.5])
    np.testing.assert_allclose(weights_of(np.diag(lengths)), lengths**-2 / (lengths**-2).sum(), rtol=1e-12)


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    dim=st.integers(1, 8),
    epsilon=st.sampled_from([0.0, 0.03, 0.2, 1.0]),
    repeat=st.booleans(),
)
@example(seed=8399, count=2, dim=5, epsilon=1.0, repeat=False)  # the null direction of two weights, known to rounding only
@example(seed=2896, count=9, dim=5, epsilon=0.2, repeat=False)  # a weight beside its bound by rounding
@example(seed=1649, count=6, dim=8, epsilon=1.0, repeat=False)  # nearly parallel vectors
@settings(max_examples=60)
def test_it_satisfies_the_optimality_conditions(seed: int, count: int, dim: int, epsilon: float, repeat: bool) -> None:
    """Feasible; entries that could give weight have no steeper slope than entries that could take it."""
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


def test_of_equal_vectors_the_centre_stays() -> None:
    centre = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(weights_of(np.ones((3, 4)), centre), centre, rtol=1e-12)


def test_what_is_not_finite_has_no_point() -> None:
    gram = torch.tensor([[torch.inf, 0.0], [0.0, 1.0]])
    assert min_norm(gram, torch.full((2,), 0.5)).isnan().all()


def test_it_is_the_same_every_time() -> None:
    vectors = hull(3, 40, 20)
    np.testing.assert_array_equal(weights_of(vectors), weights_of(vectors))


def test_inner_products_are_summed_in_double_precision() -> None:
    vectors = torch.randn(3, 70_000, generator=torch.Generator().manual_seed(0))
    wide = vectors.double()
    torch.testing.assert_close(inner_products(vectors[:2], vectors), wide[:2] @ wide.T, rtol=1e-12, atol=1e-9)


def test_a_zero_vector_keeps_its_length() -> None:
    assert unit_lengths(torch.tensor([[4.0, 0.0], [0.0, 0.0]])).tolist() == [0.5, 0.0]
