"""Where a run diverged: the client, the local step and the round, found by hand."""

from typing import Any

import numpy as np
import pytest

from fedcore import Simulation
from fedcore.simulation.report import RoundReport
from tests.builders.specifications import DIGITS, Document, specification

CURVATURES = [1.0, 30.0, 1.0, 1e3, 900.0]
OVERFLOWS: Document = {
    "name": "some clients overflow",
    "problem": {
        "dataset": {
            "kind": "quadratic",
            "clients": [{"H": [[h]], "e": [h * i], "c": 0.0} for i, h in enumerate(CURVATURES)],
            "x0": [20.0],
        }
    },
    "algorithm": {"kind": "fedavg"},
    "local": {"lr": 0.5, "steps": 130},
    "rounds": 4,
    "evaluation": {"measures": ["train_loss"]},
}
"""At step size 0.5 clients 3 and 4 overflow within 130 steps, and client 1 in the second round."""


def ended(**changes: Any) -> tuple[Simulation, RoundReport]:
    simulation = Simulation(specification(OVERFLOWS, **changes), 0)
    report = simulation.advance()
    while not simulation.finished:
        report = simulation.advance()
    assert report.diverged
    return simulation, report


def first_overflow(client: int, x: float) -> int:
    """The step of gradient descent, from 1, after which the model is infinite."""
    y, h = np.float64(x), CURVATURES[client]
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(1, 131):
            y = y - 0.5 * (h * y - h * client)
            if not np.isfinite(y):
                return step
    raise AssertionError("it does not overflow")


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
def test_the_client_that_overflows_first_is_named_with_the_step(engine: str) -> None:
    simulation, report = ended(execution={"engine": engine})
    step = first_overflow(3, 20.0)
    assert step < first_overflow(4, 20.0)
    assert report.round == 1
    assert report.extra["diverged_client"] == 3
    assert report.extra["diverged_step"] == step
    assert simulation.facts.divergence == f"client 3, local step {step} of round 1"


def test_the_place_is_kept_in_a_checkpoint() -> None:
    simulation, _ = ended()
    other = Simulation(simulation.spec, 0)
    other.restore(simulation.checkpoint())
    assert other.facts.divergence == simulation.facts.divergence


def test_the_place_is_found_where_changes_are_only_summed() -> None:
    spec = specification(
        DIGITS,
        problem={"model": {"l2": 1.0}},
        local={"lr": 1e6, "steps": 20, "epochs": None},
        rounds=2,
        execution={"engine": "compiled"},
    )
    simulation = Simulation(spec, 0)
    report = simulation.advance()
    assert report.diverged
    assert {"diverged_client", "diverged_step"} <= report.extra.keys()


def test_a_loss_that_overflows_of_a_finite_model_says_so() -> None:
    large: Document = {"dataset": {"clients": [{"H": [[1.0]], "e": [0.0], "c": 0.0}], "x0": [1e200]}}
    simulation, report = ended(problem=large, local={"lr": 1e-6, "steps": 1})
    assert simulation.facts.divergence == "the training loss after round 1, of a finite model"
    assert "diverged_client" not in report.extra


def test_a_message_that_is_not_finite_is_told_from_training() -> None:
    sane: Document = {"dataset": {"clients": [{"H": [[1.0]], "e": [1e305], "c": 0.0}] * 2, "x0": [0.0]}}
    attack: Document = {"attack": {"kind": "sign_flipping", "share": 0.5, "scale": 1e6}}
    simulation, report = ended(problem=sane, systems=attack)
    attackers = simulation.context.attackers
    assert attackers is not None
    (liar,) = attackers.clients.tolist()
    assert simulation.facts.divergence == f"the message of client {liar} in round 1"
    assert report.extra["diverged_client"] == liar
    assert "diverged_step" not in report.extra
