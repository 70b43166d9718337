"""The engines on cohorts that are ragged, and larger than the memory one computation may take."""

import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.algorithms import ALGORITHMS
from fedcore.algorithms.fedavg import FedAvg
from fedcore.core import ClientContext, Rule, Vectors
from fedcore.engine.engines import check_supported
from fedcore.errors import SpecificationError
from fedcore.problems import Stacked, TrainingProblem
from fedcore.problems.base import WORKING_BYTES, Ids
from fedcore.problems.passes import Step
from fedcore.spec import ExperimentSpec
from fedcore.testing.algorithms import check_affine_form, observed_form, parts_with
from tests.builders.specifications import DIGITS_CNN, QUADRATIC, SYNTHETIC, Document, merged, specification
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
    confine(simulation.context.problem, working_bytes)
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
    confine(simulation.context.problem, working_bytes)
    problem: Any = Noting(simulation.context.problem)
    simulation.context = replace(simulation.context, problem=problem)
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
    assert Simulation(specification(document), seed=0).facts.choice.engine == engine


WITHOUT_KERNELS = """
import sys
sys.modules["fedcore.engine.accelerated"] = None
from fedcore import Simulation
from fedcore.errors import SpecificationError
from tests.builders.specifications import SYNTHETIC, specification

simulation = Simulation(specification(SYNTHETIC), seed=0)
assert simulation.facts.choice.engine == "vectorised", simulation.facts.choice
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


# Rules of any form run in every engine, and a rule's declared form is that of its direction.


class Sign(Rule):
    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad.sign()


class Normalised(Rule):
    """Steps of equal length, shorter for clients that take more of them."""

    divides_step_size = True

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad / grad.norm(dim=-1, keepdim=True).clamp(min=1e-9)


class Clipped(Rule):
    """A clipped gradient, and a pull towards x where the client's last change was positive."""

    memory = ("last",)

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return torch.clamp(grad, -0.1, 0.1) + torch.where(context.memory["last"] > 0, y - context.x, 0.0)

    def remember(self, delta: Tensor, sent: Vectors, x: Tensor, context: ClientContext) -> Vectors:
        return {"last": delta}


class Scaled(Clipped):
    """A gradient scaled by the client's last change."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad * (1 + context.memory["last"])


UNDECLARED = [Sign(), Normalised(), Clipped(), Scaled()]
DOCUMENTS: dict[str, Document] = {
    "quadratic": QUADRATIC,
    "ragged cohorts, momentum and weight decay": merged(
        SYNTHETIC,
        {
            "local": {
                "lr": None,
                "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "prox_mu": 0.1},
            }
        },
    ),
}


def with_rule(spec: ExperimentSpec, rule: Rule) -> ExperimentSpec:
    class Algorithm(FedAvg):
        def rule(self) -> Rule:
            return rule

        def round_law(self, prox_mu: float, *, uniform: bool) -> None:
            return None

        averages_models = True

    return spec.model_copy(update={"algorithm": Algorithm()})


def parameters_of(document: Document, rule: Rule, engine: str) -> Tensor:
    spec = specification(document, execution={"engine": engine})
    simulation = Simulation(with_rule(spec, rule), seed=0)
    while not simulation.finished:
        simulation.advance()
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("engine", ["parallel", "vectorised"])
@pytest.mark.parametrize("rule", UNDECLARED, ids=lambda rule: type(rule).__name__)
def test_a_rule_of_any_form_runs_alike_in_every_engine(rule: Rule, engine: str, name: str) -> None:
    expected = parameters_of(DOCUMENTS[name], rule, "reference")
    torch.testing.assert_close(parameters_of(DOCUMENTS[name], rule, engine), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", UNDECLARED, ids=lambda rule: type(rule).__name__)
def test_a_rule_without_affine_form_is_left_to_engines_that_call_it(rule: Rule) -> None:
    simulation = Simulation(with_rule(specification(SYNTHETIC), rule), seed=0)
    assert simulation.facts.choice.engine == "vectorised"
    with pytest.raises(SpecificationError) as refused:
        check_supported("compiled", simulation.context.algorithm, simulation.context.problem)
    assert refused.value.pointer == "/execution/engine"


def _with_random_parameters(rule: Rule) -> Rule:
    generator = torch.Generator().manual_seed(1)
    return replace(
        rule,
        **{
            field.name: float(torch.rand(1, generator=generator)) + 0.1
            for field in fields(rule)
            if isinstance(getattr(rule, field.name), float)
        },
    )


@pytest.mark.parametrize("member", ALGORITHMS.builtin, ids=lambda member: member.__name__)
def test_a_rule_of_the_catalogue_declares_the_form_of_its_direction(member: type[FedAvg]) -> None:
    rule = _with_random_parameters(member().rule())
    check_affine_form(rule, parts_with(member(), rule))
    assert rule.affine_form() is not None or observed_form(rule, parts_with(member(), rule)) is None


@pytest.mark.parametrize("rule", UNDECLARED, ids=lambda rule: type(rule).__name__)
def test_a_rule_of_another_form_is_told_apart(rule: Rule) -> None:
    assert rule.affine_form() is None
    assert observed_form(rule, parts_with(FedAvg(), rule)) is None
