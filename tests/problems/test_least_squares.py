"""Least squares: gradients by rows, minimiser and measures against the formula, given inline or
drawn.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.block import field_docstrings
from fedcore.data.exact import GeneratedProblem, LeastSquares
from fedcore.problems import TrainingProblem, load_problem
from fedcore.spec.problem import Problem as ProblemSpec
from tests.builders.specifications import Document

RIDGE = 0.3
SIZES = (5, 2, 9)


def drawn_clients() -> list[Document]:
    draw = np.random.default_rng(4)
    return [
        {"A": draw.normal(size=(size, 4)).tolist(), "b": draw.normal(size=size).tolist()} for size in SIZES
    ]


CLIENTS = drawn_clients()
X = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64)


def load(dataset: Document) -> TrainingProblem:
    spec = ProblemSpec.model_validate({"dataset": {"kind": "least_squares", **dataset}})
    return load_problem(spec, seed=0, dtype=torch.float64, data_dir=Path("nowhere"))


def matrix(client: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.array(CLIENTS[client]["A"]), np.array(CLIENTS[client]["b"])


def value(client: int, x: Tensor, rows: list[int] | None = None) -> Tensor:
    """1/(2 n) |A x - b|^2 + ridge / 2 |x|^2 over some rows."""
    a, b = (torch.from_numpy(part if rows is None else part[rows]) for part in matrix(client))
    return (a @ x - b).square().sum() / (2 * len(b)) + RIDGE / 2 * x.square().sum()


def slope(client: int, x: Tensor, rows: list[int] | None = None) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(value(client, x, rows), x)[0]


@pytest.mark.parametrize("rows", [None, [3], [4, 0, 1]])
def test_a_clients_gradient_is_autograds_over_its_rows(rows: list[int] | None) -> None:
    samples = None if rows is None else torch.tensor(rows)
    gradient = load({"clients": CLIENTS, "ridge": RIDGE}).gradient(X, 2, samples)
    torch.testing.assert_close(gradient, slope(2, X, rows), rtol=0, atol=1e-13)


def test_stacked_gradients_leave_out_padding() -> None:
    batches = [[[0, 1, 2], [4, -1, -1]], [[8, 3, -1], [7, 1, 6]]]
    stacked = load({"clients": CLIENTS, "ridge": RIDGE}).stack(np.array([0, 2]), torch.tensor(batches))
    thetas = torch.stack([X, -X])
    for step in range(2):
        rows = [[row for row in batches[client][step] if row >= 0] for client in range(2)]
        expected = torch.stack([slope(0, X, rows[0]), slope(2, -X, rows[1])])
        torch.testing.assert_close(stacked.gradient(thetas, step), expected, rtol=0, atol=1e-13)


def test_one_batch_repeated_is_held_once_however_many_steps() -> None:
    stacked = load({"clients": CLIENTS, "ridge": RIDGE}).stack(
        np.array([0, 1]), torch.tensor([[[0, 1, 2]], [[1, 0, -1]]]).expand(-1, 10**9, -1)
    )
    thetas = torch.stack([X, -X])
    for step in (0, 10**9 - 1):
        expected = torch.stack([slope(0, X, [0, 1, 2]), slope(1, -X)])
        torch.testing.assert_close(stacked.gradient(thetas, step), expected, rtol=0, atol=1e-13)


def test_full_gradients_are_those_over_all_rows() -> None:
    gradients = load({"clients": CLIENTS, "ridge": RIDGE}).client_gradients(X, np.array([1, 0]))
    torch.testing.assert_close(gradients, torch.stack([slope(1, X), slope(0, X)]), rtol=0, atol=1e-13)


@pytest.mark.parametrize("weights", [None, [1.0, 5.0, 2.0]])
def test_measures_are_those_of_the_weighted_sum(weights: list[float] | None) -> None:
    clients = (
        CLIENTS
        if weights is None
        else [{**client, "weight": weight} for client, weight in zip(CLIENTS, weights, strict=True)]
    )
    problem = load({"clients": clients, "ridge": RIDGE})
    share = np.array(SIZES if weights is None else weights, float)
    share /= share.sum()
    np.testing.assert_allclose(problem.share, share)
    matrices = [matrix(client) for client in range(3)]
    hessian = sum(p * a.T @ a / len(b) for p, (a, b) in zip(share, matrices, strict=True)) + RIDGE * np.eye(4)
    linear = sum(p * a.T @ b / len(b) for p, (a, b) in zip(share, matrices, strict=True))
    minimiser = torch.from_numpy(np.linalg.solve(hessian, linear))
    objective, least = (
        sum(p * float(value(client, x)) for client, p in enumerate(share)) for x in (X, minimiser)
    )
    measured = problem.evaluate(X, [])
    assert measured == pytest.approx(
        {
            "objective": objective,
            "suboptimality": objective - least,
            "distance": float((X - minimiser).norm()),
        }
    )


def test_without_heterogeneity_and_ridge_drawn_clients_agree_on_a_solution_without_error() -> None:
    problem = load({"generate": {"dim": 4, "clients": 3, "heterogeneity": 0.0, "samples": 30}})
    (centre,) = torch.linalg.solve(*_normal_equations(problem))[None]
    assert problem.evaluate(centre, [])["objective"] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(problem.client_gradients(centre, np.arange(3)), 0, atol=1e-12)


def test_drawn_rows_have_the_condition_number_asked_for() -> None:
    problem = load({"generate": {"dim": 3, "clients": 1, "condition_number": 50.0, "samples": 100_000}})
    eigenvalues = np.linalg.eigvalsh(_normal_equations(problem)[0])
    assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(50.0, rel=0.05)


def test_the_curvatures_of_few_rows_lie_further_apart_than_those_of_their_covariance() -> None:
    """The numbers in the description of `condition_number`."""
    spec = LeastSquares.model_validate(
        {"kind": "least_squares", "generate": {"dim": 10, "samples": 100, "condition_number": 10}}
    )
    curvatures = np.linalg.eigvalsh(spec.quadratics().hessians)
    assert (curvatures.min(), curvatures.max()) == (
        pytest.approx(0.066, abs=5e-4),
        pytest.approx(1.45, abs=5e-3),
    )
    assert "between 0.066 and 1.45" in field_docstrings(GeneratedProblem)["condition_number"]


def _normal_equations(problem: TrainingProblem) -> tuple[Tensor, Tensor]:
    """H and e of the first client's gradient H x - e."""
    zero = torch.zeros(problem.dim, dtype=torch.float64)
    linear = -problem.gradient(zero, 0, None)
    columns = [
        problem.gradient(unit, 0, None) + linear for unit in torch.eye(problem.dim, dtype=torch.float64)
    ]
    return torch.stack(columns, 1), linear
