"""FedSAM: the loop of the paper written out, and its limit cases."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore.algorithms.fedsam import SharpnessAware
from fedcore.core import ClientContext
from fedcore.engine.engines import supports
from fedcore.models.module_object import ModuleObject
from fedcore.problems import load_problem
from fedcore.simulation.simulation import Simulation
from tests.algorithms.test_longhand import (
    COHORTS,
    ETA,
    FULL,
    STEPS,
    Vector,
    gradient,
    iterates,
    over,
    trajectory,
)
from tests.builders.specifications import DIGITS_CNN, merged, specification

RHO, BETA = 0.3, 0.8


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
