"""FedExP: the paper's loop written out, its step size, and its limit cases."""

from typing import Any

import numpy as np
import pytest
import torch

from fedcore import run
from fedcore.algorithms.fedexp import Extrapolation
from fedcore.core import Cohort
from tests.algorithms.test_longhand import COHORTS, ETA, P, Vector, sgd, trajectory
from tests.builders.specifications import QUADRATIC, specification

EPSILON = 0.01


def step_size(deltas: np.ndarray) -> float:
    """eta_g of Algorithm 1 for the deltas [M, D] of a round."""
    mean = deltas.mean(0)
    return max(1.0, float((deltas**2).sum() / (2 * len(deltas) * (mean @ mean + EPSILON))))


def iterates(kind: str, cohorts: list[list[int]], **changes: Any) -> np.ndarray:
    options = {"epsilon": EPSILON} if kind == "fedexp" else {}
    spec = specification(
        QUADRATIC,
        algorithm={"kind": kind, **options},
        local={"lr": ETA},
        participation={"kind": "trace", "rounds": cohorts, "weighting": "uniform", **changes},
    )
    return np.array([report.extra["x"] for report in run(spec)])


def cohort(weights: list[float]) -> Cohort:
    ones = torch.ones(len(weights), dtype=torch.float64)
    return Cohort(
        ones.long(), torch.tensor(weights, dtype=torch.float64), ones / len(ones), ones, 9, ones, ones
    )


def combined(deltas: np.ndarray, weights: list[float]) -> np.ndarray:
    aggregate = Extrapolation(EPSILON).combine(torch.from_numpy(deltas), cohort(weights), {})
    np.testing.assert_allclose(aggregate.coefficients.numpy() @ deltas, aggregate.direction.numpy())
    return aggregate.direction.numpy()


@pytest.mark.parametrize("cohorts", [[[0, 1, 2, 3]] * 8, COHORTS], ids=["full", "partial"])
def test_the_iterates_are_those_of_the_papers_loop(cohorts: list[list[int]]) -> None:
    taken = []

    def round_of(x: Vector, members: list[int]) -> Vector:
        deltas = np.array([sgd(i, x) - x for i in members])
        taken.append(step_size(deltas))
        return x + taken[-1] * deltas.mean(0)

    expected = trajectory(round_of, cohorts)
    assert max(taken) > 1.1, "the step size should be extrapolated in some round"
    np.testing.assert_allclose(iterates("fedexp", cohorts), expected, rtol=0, atol=1e-12)


def test_one_client_a_round_is_fedavg() -> None:
    alone = [[0], [1], [2], [3], [3], [2], [1], [0]]
    np.testing.assert_array_equal(iterates("fedexp", alone), iterates("fedavg", alone))


def test_the_step_size_of_clients_that_agree_is_one() -> None:
    delta = np.array([3.0, -4.0])
    np.testing.assert_allclose(combined(np.tile(delta, (5, 1)), [0.2] * 5), delta, rtol=1e-15)


def test_the_step_size_of_orthogonal_changes_is_half_their_number() -> None:
    """|mean|^2 is 1/M of the mean square, so eta_g = M / 2 without epsilon."""
    deltas = 1e6 * np.eye(8)
    np.testing.assert_allclose(combined(deltas, [1 / 8] * 8), 4 * deltas.mean(0), rtol=1e-12)


def test_changes_that_cancel_leave_the_model_where_it_is() -> None:
    np.testing.assert_array_equal(combined(np.array([[1.0, 2.0], [-1.0, -2.0]]), [0.5, 0.5]), [0.0, 0.0])


def test_the_sum_of_the_weights_counts_once() -> None:
    """Weights of a third of their size move the model by a third."""
    deltas = np.random.default_rng(1).normal(size=(4, 3))
    whole = combined(deltas, [0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(combined(deltas, [w / 3 for w in (0.4, 0.3, 0.2, 0.1)]), whole / 3, rtol=1e-12)


def test_shares_weigh_both_means_of_the_step_size() -> None:
    deltas = np.random.default_rng(2).normal(size=(4, 3))
    mean = P @ deltas
    factor = max(1.0, float(P @ (deltas**2).sum(1) / (2 * (mean @ mean + EPSILON))))
    assert factor > 1
    np.testing.assert_allclose(combined(deltas, P.tolist()), factor * mean, rtol=1e-12)
