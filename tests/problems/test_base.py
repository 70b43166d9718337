"""Losses of clients: of the problem whose gradients are trained on, and whose mean is its objective."""

import numpy as np
import pytest
import torch

from fedcore import Simulation
from tests.builders.specifications import DIGITS, QUADRATIC, SYNTHETIC, Document, merged, specification

LEAST_SQUARES: Document = merged(
    {key: value for key, value in QUADRATIC.items() if key not in ("problem", "systems")},
    {
        "problem": {
            "dataset": {
                "kind": "least_squares",
                "ridge": 0.3,
                "generate": {"clients": 4, "dim": 3, "seed": 1},
            }
        }
    },
)
CASES: dict[str, Document] = {
    "quadratic": QUADRATIC,
    "least squares": LEAST_SQUARES,
    "synthetic": SYNTHETIC,
    "digits with weight decay": merged(
        DIGITS, {"problem": {"model": {"l2": 0.5}}, "execution": {"precision": "float64"}}
    ),
    "transformed": merged(
        SYNTHETIC,
        {"participation": {"kind": "without_replacement", "clients_per_round": 4, "transformed": True}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_weighted_mean_of_the_clients_losses_is_the_training_loss(case: str) -> None:
    problem = Simulation(specification(CASES[case]), seed=0).begin().flow.context.problem
    theta = problem.initial() + 0.1
    losses = problem.client_losses(theta, np.arange(len(problem.share)))
    expected = problem.evaluate(theta, {"train_loss"})["train_loss"]
    np.testing.assert_allclose(problem.share @ losses, expected, rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_a_clients_loss_rises_along_its_gradient(case: str) -> None:
    """Central differences of F_i agree with the gradient that the client trains with."""
    problem = Simulation(specification(CASES[case]), seed=0).begin().flow.context.problem
    theta, clients = problem.initial(), np.array([2, 1])
    theta = theta + 0.1 * torch.randn(
        len(theta), generator=torch.Generator().manual_seed(0), dtype=theta.dtype
    )
    gradients = problem.client_gradients(theta, clients)
    step = 1e-5 * gradients[0] / gradients[0].norm()
    rise = problem.client_losses(theta + step, clients) - problem.client_losses(theta - step, clients)
    np.testing.assert_allclose(rise / 2, (gradients @ step).numpy(), rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_one_client_with_the_samples_of_all_has_the_same_objective(case: str) -> None:
    problem = Simulation(specification(CASES[case]), seed=0).begin().flow.context.problem
    pooled, clients, one = problem.pooled(), np.arange(len(problem.share)), np.zeros(1, np.int64)
    theta, share = problem.initial() + 0.1, torch.from_numpy(problem.share).to(problem.initial())
    expected = share @ problem.client_gradients(theta, clients)
    everything = torch.from_numpy(np.arange(pooled.sizes[0]))
    for found in (pooled.client_gradients(theta, one)[0], pooled.gradient(theta, 0, everything)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    loss = problem.evaluate(theta, {"train_loss"})["train_loss"]
    np.testing.assert_allclose(pooled.client_losses(theta, one), [loss], rtol=1e-12)
    assert pooled.sizes.tolist() == [problem.sizes.sum()]
    assert len(problem.share) > 1, "the problem itself does not change"
