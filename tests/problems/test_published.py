"""The small problems of the papers, each a specification: their minimisers, and where FedAvg goes
instead.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedcore import Simulation
from fedcore.problems import TrainingProblem, load_problem
from tests.builders.specifications import Document, specification

FEDNOVA_FIGURE_2: Document = {
    "name": "FedNova, Fig. 2 (b)",
    "problem": {
        "dataset": {
            "kind": "quadratic",
            "generate": {
                "dim": 50,
                "clients": 30,
                "centre": 0,
                "heterogeneity": 0.1,
                "condition_number": 1,
                "seed": 1,
            },
        }
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.05, "lr_schedule": {"kind": "step", "at": [0.5, 0.75], "factor": 0.2}},
    "systems": {"steps": {"kind": "normal", "mean": 30, "std": 20, "low": 1, "high": 96}},
    "rounds": 1_200,
}
FEDLIN_FIGURE_1: Document = {
    "name": "FedLin, Fig. 1, right",
    "problem": {
        "dataset": {
            "kind": "quadratic",
            "clients": [{"H": [[1]], "e": [3], "c": 4.5}, {"H": [[2]], "e": [100], "c": 2500}],
        }
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.01},
    "systems": {"steps": {"kind": "per_client", "values": [50, 30]}},
    "rounds": 60,
    "evaluation": {"record_parameters": True},
}
FEDLIN_REGRESSION: Document = {
    "name": "FedLin, linear regression",
    "problem": {
        "dataset": {
            "kind": "least_squares",
            "generate": {
                "dim": 100,
                "clients": 20,
                "samples": 500,
                "centre": 0,
                "heterogeneity": 1,
                "shift": 10**0.5,
                "condition_number": 1,
                "noise": 0.5,
                "seed": 2,
            },
        }
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.01},
    "systems": {"steps": {"kind": "uniform", "low": 2, "high": 50}},
    "rounds": 10,
}
RIDGE: Document = {
    "name": "Li et al., ridge regression",
    "problem": {
        "dataset": {
            "kind": "least_squares",
            "ridge": 0.1,
            "generate": {
                "dim": 3,
                "clients": 4,
                "samples": 8,
                "heterogeneity": 2,
                "condition_number": 5,
                "seed": 3,
            },
        }
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.05, "steps": 5},
    "rounds": 400,
    "evaluation": {"record_parameters": True},
}


def problem(document: Document) -> TrainingProblem:
    return load_problem(
        specification(document).problem, seed=0, dtype=torch.float64, data_dir=Path("nowhere")
    )


def at_zero(document: Document) -> NDArray[np.float64]:
    """Minus the clients' gradients at zero, [N, D]."""
    loaded = problem(document)
    clients = np.arange(len(loaded.share))
    return -loaded.client_gradients(torch.zeros(loaded.dim, dtype=torch.float64), clients).numpy()


def test_fednovas_clients_are_spread_around_zero_with_unit_curvature() -> None:
    """F_i = 1/2 |x - e_i|^2 with e_i ~ N(0, 0.01 I), so that x* is the mean of e_i."""
    optima = at_zero(FEDNOVA_FIGURE_2)
    assert optima.std() == pytest.approx(0.1, rel=0.05)
    assert abs(optima.mean()) < 4 * 0.1 / optima.size**0.5
    loaded = problem(FEDNOVA_FIGURE_2)
    assert loaded.evaluate(torch.from_numpy(optima.mean(0)), [])["distance"] == pytest.approx(0, abs=1e-12)


def test_fedlins_two_quadratics_have_the_minimum_that_is_known() -> None:
    measured = problem(FEDLIN_FIGURE_1).evaluate(torch.tensor([103 / 3], dtype=torch.float64), [])
    assert measured == pytest.approx({"objective": 368.1666667, "suboptimality": 0, "distance": 0}, abs=1e-6)


def finally_at(document: Document, **changes: Any) -> NDArray[np.float64]:
    simulation = Simulation(specification(document, **changes), seed=0)
    while not simulation.finished:
        simulation.advance()
    return simulation.model()["x"].numpy()


def test_fedavg_goes_astray_on_fedlins_two_quadratics() -> None:
    """To (sum_i K_i H_i)^-1 sum_i K_i e_i with K_i = (1 - (1 - eta H_i)^tau_i) / H_i."""
    weights = [1 - 0.99**50, (1 - 0.98**30) / 2]
    expected = (weights[0] * 3 + weights[1] * 100) / (weights[0] + 2 * weights[1])
    assert finally_at(FEDLIN_FIGURE_1)[0] == pytest.approx(expected, abs=1e-8)
    assert abs(expected - 103 / 3) > 1


def test_fedlins_regression_has_the_moments_of_its_generator() -> None:
    """Optima x_i ~ N(u_i, I), u_i ~ N(0, 10); A_i standard normal, 500 by 100."""
    loaded = problem(FEDLIN_REGRESSION)
    optima = []
    for client in range(20):
        zero = torch.zeros(100, dtype=torch.float64)
        linear = -loaded.gradient(zero, client, None)
        hessian = torch.stack(
            [loaded.gradient(unit, client, None) + linear for unit in torch.eye(100, dtype=torch.float64)], 1
        )
        optima.append(torch.linalg.solve(hessian, linear).numpy())
    assert loaded.sizes.tolist() == [500] * 20
    means = np.mean(optima, axis=1)
    assert means.std() == pytest.approx(10**0.5, rel=0.35)
    assert np.std(optima, axis=1).mean() == pytest.approx(1, rel=0.05)


def test_a_fixed_step_keeps_fedavg_from_the_ridge_solution_in_proportion_to_it() -> None:
    """Li et al.: |w~ - w*| = Omega((E - 1) eta) |w*| with full batches and a fixed small step eta.

    None at E = 1.
    """
    at_optimum = finally_at(RIDGE, local={"steps": 1, "lr": 0.5}, rounds=200)
    gap = {
        eta: np.linalg.norm(finally_at(RIDGE, local={"lr": eta}, rounds=int(16 / eta)) - at_optimum)
        for eta in (0.04, 0.08)
    }
    assert problem(RIDGE).evaluate(torch.from_numpy(at_optimum), [])["distance"] == pytest.approx(0, abs=1e-9)
    assert gap[0.04] > 1e-3 * np.linalg.norm(at_optimum)
    assert gap[0.08] / gap[0.04] == pytest.approx(2, rel=0.1)
