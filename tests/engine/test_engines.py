"""The engines on cohorts that are ragged, and larger than the memory one computation may take."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.problems import Stacked, TrainingProblem
from fedcore.problems.base import WORKING_BYTES, Ids
from fedcore.problems.passes import Step
from tests.documents import DIGITS_CNN, QUADRATIC, SYNTHETIC, Document, specification
from tests.support.accelerated import NEEDS_COMPILED
from tests.support.memory import confine

LEAST_SQUARES: Document = {
    **QUADRATIC,
    "problem": {
        "dataset": {
            "kind": "least_squares",
            "ridge": 0.1,
            "generate": {"dim": 5, "clients": 4, "samples": 20},
        }
    },
    "local": {"lr": 0.05, "steps": 5, "batch_size": 7},
}
LOGISTIC = {
    **SYNTHETIC,
    "local": {"lr": 0.01, "steps": 3, "batch_size": 7},
    "rounds": 2,
    "evaluation": {"measures": []},
}
CASES = {"logistic": LOGISTIC, "cnn": DIGITS_CNN, "quadratic": QUADRATIC, "least squares": LEAST_SQUARES}


def trained(document: Document, engine: str, working_bytes: int = WORKING_BYTES) -> Tensor:
    simulation = Simulation(specification(document, execution={"engine": engine}), seed=0)
    confine(simulation._setting.problem, working_bytes)
    while not simulation.finished:
        simulation.advance()
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


@pytest.mark.parametrize("working_bytes", [20_000, pytest.param(64 << 20, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", CASES)
def test_the_engines_agree_however_little_fits_into_memory(name: str, working_bytes: int) -> None:
    expected = trained(CASES[name], "reference")
    for engine in ("reference", "parallel", "vectorised"):
        found = trained(CASES[name], engine, working_bytes)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class Noting:
    """A problem that notes how many samples each stretch holds."""

    def __init__(self, problem: TrainingProblem) -> None:
        self.problem = problem
        self.held: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def stack(self, clients: Ids, batches: Tensor, *step: Step) -> Stacked:
        self.held.append(tuple(batches.shape))
        return self.problem.stack(clients, batches, *step)


@pytest.mark.parametrize("working_bytes", [1, 20_000, 100_000])
def test_a_stretch_holds_no_more_samples_than_the_problem_has_capacity_for(working_bytes: int) -> None:
    simulation = Simulation(specification(LOGISTIC, execution={"engine": "vectorised"}), seed=0)
    confine(simulation._setting.problem, working_bytes)
    problem: Any = Noting(simulation._setting.problem)
    simulation._setting = replace(simulation._setting, problem=problem)
    simulation.advance()
    assert problem.held
    for clients, steps, width in problem.held:
        assert clients * steps * width <= problem.capacity or clients == steps == 1


@pytest.mark.parametrize(
    ("document", "engine"),
    [
        pytest.param(SYNTHETIC, "compiled", marks=NEEDS_COMPILED),
        (QUADRATIC, "vectorised"),
        (DIGITS_CNN, "parallel"),
    ],
)
def test_auto_compiles_dense_networks_stacks_small_matrices_and_gives_convolutions_a_core_each(
    document: Document, engine: str
) -> None:
    assert Simulation(specification(document), seed=0).engine == engine


WITHOUT_KERNELS = """
import sys
sys.modules["fedcore.engine.accelerated"] = None
from fedcore import Simulation
from fedcore.errors import SpecificationError
from tests.documents import SYNTHETIC, specification

simulation = Simulation(specification(SYNTHETIC), seed=0)
assert simulation.engine == "vectorised", simulation.engine
assert simulation.advance().round == 1
assert "torch._dynamo" not in sys.modules  # takes two seconds to import
try:
    Simulation(specification(SYNTHETIC, execution={"engine": "compiled"}), seed=0)
except SpecificationError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_other_engines_do_without_the_kernels_and_the_compiler_of_pytorch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_KERNELS], capture_output=True, text=True, check=True)
    assert done.stdout == "/execution/engine: `compiled` is not installed; use `auto`\n"
