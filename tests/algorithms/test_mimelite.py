"""MimeLite: the loop of the paper written out, and its limit cases."""

import numpy as np
import pytest

from fedcore import run
from tests.algorithms.test_fedsam import BETA
from tests.algorithms.test_longhand import (
    COHORTS,
    ETA,
    FULL,
    STEPS,
    Vector,
    gradient,
    iterates,
    trajectory,
)
from tests.builders.specifications import QUADRATIC, specification


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
