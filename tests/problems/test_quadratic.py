"""Quadratic problems: gradients, minimiser and measures against the formula, given inline or
drawn.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore.problems import TrainingProblem, load_problem
from fedcore.problems.quadratic import QuadraticProblem
from fedcore.spec.problem import Problem as ProblemSpec
from tests.builders.specifications import Document, quadratics

CLIENTS = quadratics(count=4, dim=3)
WEIGHTS = np.array([client["weight"] for client in CLIENTS])
SHARES = WEIGHTS / WEIGHTS.sum()
X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)


def load(dataset: Document) -> TrainingProblem:
    spec = ProblemSpec.model_validate({"dataset": {"kind": "quadratic", **dataset}})
    return load_problem(spec, seed=0, dtype=torch.float64, data_dir=Path("nowhere"))


def value(client: Document, x: Tensor) -> Tensor:
    """F_i(x) = 1/2 x' H x - e' x + c."""
    hessian, linear = (torch.tensor(client[name], dtype=torch.float64) for name in ("H", "e"))
    return 0.5 * x @ hessian @ x - linear @ x + client["c"]


def objective(x: Tensor) -> Tensor:
    return sum(
        (share * value(client, x) for share, client in zip(SHARES, CLIENTS, strict=True)), torch.zeros(())
    )


@pytest.mark.parametrize("client", range(4))
def test_a_clients_gradient_is_autograds(client: int) -> None:
    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(CLIENTS[client], x), x)
    torch.testing.assert_close(
        load({"clients": CLIENTS}).gradient(X, client, None), expected, rtol=0, atol=1e-14
    )


def test_stacked_and_full_gradients_are_those_of_each_client() -> None:
    problem, clients = load({"clients": CLIENTS}), np.array([2, 0])
    thetas = torch.stack([X, -X])
    stacked = problem.stack(clients, torch.zeros(2, 5, 1, dtype=torch.int64))
    for step in (0, 4):
        expected = torch.stack(
            [problem.gradient(theta, client, None) for theta, client in zip(thetas, (2, 0), strict=True)]
        )
        torch.testing.assert_close(stacked.gradient(thetas, step), expected, rtol=0, atol=1e-14)
    at_one = torch.stack([problem.gradient(X, client, None) for client in (2, 0)])
    torch.testing.assert_close(problem.client_gradients(X, clients), at_one, rtol=0, atol=1e-14)


def test_measures_are_those_of_the_weighted_sum() -> None:
    problem = load({"clients": CLIENTS})
    hessian = sum(share * np.array(client["H"]) for share, client in zip(SHARES, CLIENTS, strict=True))
    linear = sum(share * np.array(client["e"]) for share, client in zip(SHARES, CLIENTS, strict=True))
    minimiser = torch.from_numpy(np.linalg.solve(hessian, linear))
    expected = {
        "objective": float(objective(X)),
        "train_loss": float(objective(X)),
        "suboptimality": float(objective(X) - objective(minimiser)),
        "distance": float((X - minimiser).norm()),
    }
    assert problem.evaluate(X, ["train_loss", "test_accuracy"]) == pytest.approx(expected, abs=1e-12)
    at_minimum = {"objective": float(objective(minimiser)), "suboptimality": 0, "distance": 0}
    assert problem.evaluate(minimiser, []) == pytest.approx(at_minimum, abs=1e-12)


def test_distance_to_many_minimisers_is_to_the_shortest() -> None:
    problem = load({"clients": [{"H": [[1.0, 1.0], [1.0, 1.0]], "e": [2.0, 2.0]}]})
    for x, distance in (([1.0, 1.0], 0), ([2.0, 0.0], 2**0.5)):
        expected = {"objective": -2, "suboptimality": 0, "distance": distance}
        assert problem.evaluate(torch.tensor(x, dtype=torch.float64), []) == pytest.approx(
            expected, abs=1e-12
        )


def test_shares_are_the_weights_and_every_client_is_one_sample() -> None:
    problem = load({"clients": CLIENTS, "x0": [1, 2, 3]})
    np.testing.assert_allclose(problem.share, SHARES)
    assert problem.sizes.tolist() == [1, 1, 1, 1]
    assert problem.initial().tolist() == [1, 2, 3]


@pytest.mark.parametrize("condition_number", [1.0, 100.0])
def test_drawn_clients_have_the_condition_number_asked_for(condition_number: float) -> None:
    problem = load(
        {"generate": {"dim": 6, "clients": 3, "condition_number": condition_number, "heterogeneity": 1.0}}
    )
    for client in range(3):
        at_zero = problem.gradient(problem.initial(), client, None)
        columns = [
            problem.gradient(unit, client, None) - at_zero for unit in torch.eye(6, dtype=torch.float64)
        ]
        eigenvalues = np.linalg.eigvalsh(torch.stack(columns))
        np.testing.assert_allclose([eigenvalues[0], eigenvalues[-1]], [1 / condition_number, 1], rtol=1e-9)


def test_drawn_clients_deviate_by_the_heterogeneity() -> None:
    def optima(heterogeneity: float) -> Tensor:
        problem = load(
            {
                "generate": {
                    "dim": 40,
                    "clients": 40,
                    "condition_number": 1,
                    "heterogeneity": heterogeneity,
                    "seed": 1,
                }
            }
        )
        return -problem.client_gradients(problem.initial(), np.arange(40))

    assert torch.allclose(optima(0.0), optima(0.0)[0])
    deviation = float(optima(3.0).std(0).square().mean().sqrt())
    assert deviation == pytest.approx(3.0, rel=0.1)


def test_the_curvature_drawn_for_a_client_does_not_depend_on_the_others() -> None:
    """Clients are worked on many at a time; one alone has the same bits."""
    few, many = (load({"generate": {"dim": 3, "clients": clients, "seed": 4}}) for clients in (2, 20_000))
    assert isinstance(few, QuadraticProblem)
    assert isinstance(many, QuadraticProblem)
    assert torch.equal(few.clients.hessians, many.clients.hessians[:2])
    assert torch.equal(few.clients.linear, many.clients.linear[:2])
    eigenvalues = torch.linalg.eigvalsh(many.clients.hessians[-5:])
    torch.testing.assert_close(eigenvalues[:, [0, 2]], torch.tensor([[0.1, 1.0]] * 5, dtype=torch.float64))
