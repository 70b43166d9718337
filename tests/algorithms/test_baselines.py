"""FedSAM, MimeLite and FedDC: the papers' loops written out, and their limit cases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcore import run
from fedcore.algorithms.fedsam import SharpnessAware
from fedcore.core import ClientContext
from fedcore.engine.engines import supports
from fedcore.models.module_object import ModuleObject
from fedcore.problems import load_problem
from fedcore.simulation.simulation import Simulation
from tests.algorithms.test_longhand import COHORTS, ETA, STEPS, X0, Vector, gradient, over, trajectory
from tests.documents import DIGITS_CNN, QUADRATIC, merged, specification

FULL = [[0, 1, 2, 3]] * 8
RHO, BETA = 0.3, 0.8


def iterates(algorithm: dict[str, Any], cohorts: list[list[int]], **changes: Any) -> np.ndarray:
    spec = specification(
        QUADRATIC,
        algorithm=algorithm,
        local={"lr": ETA},
        participation={"kind": "trace", "rounds": cohorts},
        **changes,
    )
    return np.array([report.extra["x"] for report in run(spec)])


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
@pytest.mark.parametrize("cohorts", [FULL, COHORTS], ids=["full", "partial"])
def test_fedsam_is_the_papers_loop(cohorts: list[list[int]], engine: str) -> None:
    def client(i: int, x: Vector) -> Vector:
        y = x.copy()
        for _ in range(STEPS[i]):
            ascent = gradient(i, y)
            y = y - ETA * gradient(i, y + RHO * ascent / np.sqrt(ascent @ ascent))
        return y

    def round_of(x: Vector, members: list[int]) -> Vector:
        return sum(w * client(i, x) for w, i in zip(over(members), members, strict=True))

    found = iterates({"kind": "fedsam", "rho": RHO}, cohorts, execution={"engine": engine})
    np.testing.assert_allclose(found, trajectory(round_of, cohorts), rtol=0, atol=1e-12)


def test_fedsam_without_a_neighbourhood_is_fedavg() -> None:
    np.testing.assert_allclose(
        iterates({"kind": "fedsam", "rho": 1e-12}, COHORTS), iterates({"kind": "fedavg"}, COHORTS), atol=1e-10
    )


def test_the_perturbation_has_the_length_of_the_radius_and_vanishes_with_the_gradient() -> None:
    grads = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.6, 2.8], [1.0, 2.0]], dtype=torch.float64)
    y, models = torch.tensor([[1.0, 2.0]] * 2, dtype=torch.float64), []

    def at(model: torch.Tensor) -> torch.Tensor:
        models.append(model)
        return grads

    local = ClientContext(y, {}, {}, None, None, torch.ones(2, 1), torch.ones(2, 1), 0.1)
    SharpnessAware(1.0).gradient(at, y, local)
    torch.testing.assert_close(models[0], y)
    torch.testing.assert_close(models[1], expected)


def test_the_engine_compiled_declines_fedsam(tmp_path: Path) -> None:
    spec = specification(
        {"name": "dense", "rounds": 1},
        problem={
            "dataset": {"kind": "synthetic", "alpha": 0, "beta": 0, "clients": 2},
            "model": {"kind": "logistic"},
        },
        algorithm={"kind": "fedsam"},
        local={"lr": 0.1, "steps": 2, "batch_size": 8},
    )
    problem = load_problem(spec.problem, 0, device="cpu", dtype=torch.float64, data_dir=tmp_path)
    assert not supports("compiled", spec.build(), problem)
    assert not spec.build().is_affine()


@pytest.mark.parametrize("policy", ["average", "local"])
def test_fedsam_of_a_network_with_batch_norm_agrees_in_all_engines(policy: str) -> None:
    """Statistics follow the first pass, and private parameters are not perturbed."""

    def model(engine: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 10)
        )
        problem = {**DIGITS_CNN["problem"], "model": ModuleObject.of(module, batch_norm=policy)}
        document = merged(DIGITS_CNN, {"algorithm": {"kind": "fedsam", "rho": 0.5}})
        execution = {"engine": engine, "precision": "float64"}
        simulation = Simulation(specification({**document, "problem": problem, "execution": execution}), 0)
        while not simulation.finished:
            simulation.advance()
        return simulation.model()

    reference = model("reference")
    for engine in ("parallel", "vectorised"):
        torch.testing.assert_close(model(engine), reference, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
@pytest.mark.parametrize("cohorts", [FULL, COHORTS], ids=["full", "partial"])
def test_mimelite_is_the_papers_loop(cohorts: list[list[int]], engine: str) -> None:
    momentum = np.zeros(3)

    def round_of(x: Vector, members: list[int]) -> Vector:
        nonlocal momentum
        models = []
        for i in members:
            y = x.copy()
            for _ in range(STEPS[i]):
                y = y - ETA * ((1 - BETA) * gradient(i, y) + BETA * momentum)
            models.append(y)
        momentum = (1 - BETA) * np.mean([gradient(i, x) for i in members], 0) + BETA * momentum
        return np.mean(models, 0)

    found = iterates({"kind": "mimelite", "beta": BETA}, cohorts, execution={"engine": engine})
    np.testing.assert_allclose(found, trajectory(round_of, cohorts), rtol=0, atol=1e-12)


def test_mimelite_without_momentum_is_fedavg() -> None:
    uniform = specification(
        QUADRATIC,
        algorithm={"kind": "fedavg"},
        local={"lr": ETA},
        participation={"kind": "trace", "rounds": COHORTS, "weighting": "uniform"},
    )
    expected = np.array([report.extra["x"] for report in run(uniform)])
    np.testing.assert_allclose(iterates({"kind": "mimelite", "beta": 0}, COHORTS), expected, atol=1e-13)


def test_mimelite_with_one_step_reaches_the_optimum() -> None:
    """It is then the heavy-ball method on the uniform sum, with exact gradients."""
    changes = {"systems": {"steps": {"kind": "constant", "value": 1}}, "rounds": 300}
    clients = QUADRATIC["problem"]["dataset"]["clients"]
    optimum = np.linalg.solve(
        sum(np.array(client["H"]) for client in clients), sum(np.array(client["e"]) for client in clients)
    )
    spec = specification(
        QUADRATIC,
        algorithm={"kind": "mimelite", "beta": BETA},
        local={"lr": 0.1},
        participation={"kind": "full"},
        **changes,
    )
    *_, last = run(spec)
    np.testing.assert_allclose(last.extra["x"], optimum, atol=1e-6)


def test_mimelite_sends_a_gradient_with_each_change_and_receives_the_momentum() -> None:
    fedavg, mimelite = (
        next(iter(run(specification(QUADRATIC, algorithm={"kind": kind})))) for kind in ("fedavg", "mimelite")
    )
    assert (mimelite.bytes_up, mimelite.bytes_down) == (2 * fedavg.bytes_up, 2 * fedavg.bytes_down)


def test_the_first_round_of_feddc_is_fedprox_and_adds_the_mean_drift() -> None:
    """Without drift and corrections yet; the mean drift is then the mean change itself."""
    once = {"execution": {"engine": "reference"}, "rounds": 1}
    feddc = iterates({"kind": "feddc", "alpha": 0.7}, [[0, 1, 2, 3]], **once)
    spec = specification(
        QUADRATIC,
        algorithm={"kind": "fedprox", "mu": 0.7},
        local={"lr": ETA},
        participation={"kind": "full", "weighting": "uniform"},
        **once,
    )
    change = np.array([report.extra["x"] for report in run(spec)]) - X0
    np.testing.assert_allclose(feddc, X0 + 2 * change, rtol=0, atol=1e-13)
