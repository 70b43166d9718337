"""Rules of any form run in every engine, and a rule's declared form is that of its direction."""

from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.algorithms import ALGORITHMS
from fedcore.algorithms.fedavg import FedAvg
from fedcore.core import ClientContext, ClientRule, ClientUpdate
from fedcore.engine.engines import check_supported
from fedcore.errors import SpecificationError
from fedcore.spec import ExperimentSpec
from fedcore.testing.algorithms import check_affine_form, observed_form, parts_with
from tests.documents import QUADRATIC, SYNTHETIC, Document, merged, specification


class Sign(ClientRule):
    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad.sign()


class Normalised(ClientRule):
    """Steps of equal length, shorter for clients that take more of them."""

    def step_size_scale(self, steps: Tensor) -> Tensor:
        return torch.rsqrt(steps)

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad / grad.norm(dim=-1, keepdim=True).clamp(min=1e-9)


class Clipped(ClientRule):
    """A clipped gradient, and a pull towards x where the client's last change was positive."""

    def memory(self) -> tuple[str, ...]:
        return ("last",)

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return torch.clamp(grad, -0.1, 0.1) + torch.where(context.memory["last"] > 0, y - context.x, 0.0)

    def update_memory(self, update: ClientUpdate, x: Tensor, context: ClientContext) -> Mapping[str, Tensor]:
        return {"last": update.delta}


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


def with_rule(spec: ExperimentSpec, rule: ClientRule) -> ExperimentSpec:
    class Algorithm(FedAvg):
        def rule(self) -> ClientRule:
            return rule

    return spec.model_copy(update={"algorithm": Algorithm()})


def trained(document: Document, rule: ClientRule, engine: str) -> Tensor:
    spec = specification(document, execution={"engine": engine})
    simulation = Simulation(with_rule(spec, rule), seed=0)
    while not simulation.finished:
        simulation.advance()
    return torch.cat([parameter.flatten() for parameter in simulation.model().values()])


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("engine", ["parallel", "vectorised"])
@pytest.mark.parametrize("rule", UNDECLARED, ids=lambda rule: type(rule).__name__)
def test_a_rule_of_any_form_runs_alike_in_every_engine(rule: ClientRule, engine: str, name: str) -> None:
    expected = trained(DOCUMENTS[name], rule, "reference")
    torch.testing.assert_close(trained(DOCUMENTS[name], rule, engine), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", UNDECLARED, ids=lambda rule: type(rule).__name__)
def test_a_rule_without_affine_form_is_left_to_engines_that_call_it(rule: ClientRule) -> None:
    simulation = Simulation(with_rule(specification(SYNTHETIC), rule), seed=0)
    assert simulation.engine == "vectorised"
    with pytest.raises(SpecificationError) as refused:
        check_supported("compiled", simulation._setting.algorithm, simulation._setting.problem)
    assert refused.value.pointer == "/execution/engine"


def _with_random_parameters(rule: ClientRule) -> ClientRule:
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
def test_a_rule_of_another_form_is_told_apart(rule: ClientRule) -> None:
    assert rule.affine_form() is None
    assert observed_form(rule, parts_with(FedAvg(), rule)) is None
