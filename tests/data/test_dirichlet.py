"""The inner Dirichlet partition against its definition: sizes first, then a mixture for each client."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore import ExperimentSpec
from fedcore.data.dirichlet import DirichletPartition, InnerDirichletPartition
from fedcore.data.federated import Ids
from fedcore.data.partition import partition
from fedcore.errors import SpecificationError
from tests.builders.specifications import Document, merged
from tests.data.test_owner_partitions import properties
from tests.data.test_size_skew import DIGITS, LABELS, stats


def sizes_of(parts: list[Ids]) -> list[int]:
    return [len(part) for part in parts]


@given(seed=st.integers(0, 2**32 - 1), alpha=st.floats(0.01, 100))
@properties
def test_inner_dirichlet_of_equal_sizes_is_the_partition_of_feddyn(seed: int, alpha: float) -> None:
    inner = InnerDirichletPartition(kind="inner_dirichlet", clients=7, alpha=alpha)
    feddyn = DirichletPartition(kind="dirichlet", clients=7, alpha=alpha, variant="feddyn", min_samples=1)
    for mine, theirs in zip(partition(inner, LABELS, seed), partition(feddyn, LABELS, seed), strict=True):
        assert np.array_equal(mine, theirs)


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=10), seed=st.integers(0, 99))
@properties
def test_inner_dirichlet_gives_each_client_the_size_that_is_asked_for(sizes: list[int], seed: int) -> None:
    spec = InnerDirichletPartition(kind="inner_dirichlet", clients=len(sizes), alpha=0.2, sizes=tuple(sizes))
    parts = partition(spec, LABELS, seed)
    assert sizes_of(parts) == sizes
    assert len(np.unique(np.concatenate(parts))) == sum(sizes)


def test_lognormal_sizes_have_the_deviation_that_is_asked_for() -> None:
    spec = InnerDirichletPartition(kind="inner_dirichlet", clients=300, alpha=1.0, sigma=0.4)
    labels = np.zeros(300_000, np.int64)
    sizes = np.array(sizes_of(partition(spec, labels, 3)))
    assert sizes.sum() == 300_000
    np.testing.assert_allclose(np.log(sizes).std(), 0.4, atol=0.05)
    assert stats.normaltest(np.log(sizes)).pvalue > 0.01


def test_a_client_of_inner_dirichlet_has_its_own_mixture_of_classes() -> None:
    """E sum_c q_c^2 = (alpha + 1) / (C alpha + 1) under Dirichlet(alpha, ..., alpha) over C."""
    labels = np.repeat(np.arange(5), 40_000)
    spec = InnerDirichletPartition(kind="inner_dirichlet", clients=400, alpha=0.5, sizes=(100,) * 400)
    shares = [np.bincount(labels[part], minlength=5) / 100 for part in partition(spec, labels, 0)]
    drawn = np.mean([(share @ share * 100 - 1) / 99 for share in shares])  # unbiased for sum q_c^2
    np.testing.assert_allclose(drawn, 1.5 / 3.5, rtol=0.05)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"sizes": [1, 2]}, "must have 3 entries"),
        ({"sizes": [1, 2, 3], "sigma": 0.5}, "either `sizes` or `sigma`"),
        ({"sizes": [1, 2, 60_000]}, "add up to 60003"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields: Document, told: str) -> None:
    chosen = {"kind": "inner_dirichlet", "clients": 3, "alpha": 1.0, **fields}
    with pytest.raises((SpecificationError, ValueError), match=told):
        ExperimentSpec.model_validate(
            merged(DIGITS, {"problem": {"partition": chosen}})
            | {"problem": {"dataset": {"kind": "mnist"}, "partition": chosen, "model": {"kind": "logistic"}}}
        )
