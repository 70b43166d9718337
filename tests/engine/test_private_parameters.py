"""Rules under batch norm that clients keep: which methods reach the rule, and which are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from fedcore import Simulation
from fedcore.algorithms.base import AlgorithmSpec
from fedcore.core import ClientContext, ClientRule, ClientUpdate, overridden
from fedcore.engine.network_state import SharedPartOfGradients, SharedPartRule
from fedcore.errors import SpecificationError
from tests.engine.test_networks import own, whole_batches

pytestmark = pytest.mark.usefixtures("factories_allowed")
BEFORE_OR_AFTER = {
    *("memory", "start", "shared", "for_model", "parameters_sent", "models_kept", "initial_spread"),
    *("shares_parameters", "with_shared_parameters", "parameters_received", "starting_point"),
    *("needs_full_gradient", "full_gradient_at", "exchanges_gradients", "first_exchange", "needs_normaliser"),
    *("gradients_per_step", "receives_new_model", "update_memory", "personal_model", "adaptation"),
    *("personal_parameters",),
    *("update_shared", "adaptive_parameters", "with_parameters", "adapt_parameters"),
}
"""Methods that are not called while clients train, but of the rule itself."""
REFUSED = {"models_trained"}
SAID = {"affine_form"}
"""None, since the rule has a direction of its own."""


def test_every_method_is_passed_on_or_not_called_in_training_or_refused() -> None:
    """A new method of rules has to be put in one of these places."""
    passed_on = overridden(SharedPartOfGradients(ClientRule(), 1), ClientRule)
    every = {name for name in vars(ClientRule) if callable(getattr(ClientRule, name)) and name[0] != "_"}
    others = BEFORE_OR_AFTER | REFUSED | SAID
    assert passed_on.isdisjoint(others)
    assert passed_on | others == every
    assert SharedPartRule(ClientRule(), 1).affine_form() is None


@dataclass(frozen=True)
class Recording(ClientRule):
    """Each method leaves a mark that depends on what it was given."""

    def step_taken(self, step: Tensor, k: int, context: ClientContext) -> Tensor:
        return step * k + context.x

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return 2 * grad + y - context.x

    def finish(self, y: Tensor, context: ClientContext) -> ClientUpdate:
        return ClientUpdate(3 * y - context.x)


def test_the_rule_sees_the_shared_part_alone_and_private_parameters_the_optimiser_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    grad, y, x = (torch.randn(2, 5, generator=draw, dtype=torch.float64) for _ in range(3))
    one = torch.ones(2, 1, dtype=torch.float64)
    whole = ClientContext(x, {}, {}, None, None, one, one, 0.1)
    part = ClientContext(x[:, :3], {}, {}, None, None, one, one, 0.1)
    rule, wrapped = Recording(), SharedPartRule(Recording(), 3)
    for found, own_part, given in (
        (wrapped.step_taken(grad, 2, whole), rule.step_taken(grad[:, :3], 2, part), grad),
        (wrapped.direction(grad, y, whole), rule.direction(grad[:, :3], y[:, :3], part), grad),
    ):
        assert torch.equal(found, torch.cat([own_part, given[:, 3:]], 1))
    assert torch.equal(wrapped.finish(y, whole).delta, rule.finish(y[:, :3], part).delta)


@dataclass(frozen=True)
class Resting(ClientRule):
    """No step moves the model."""

    def step_taken(self, step: Tensor, k: int, context: ClientContext) -> Tensor:
        return torch.zeros_like(step)


class AtRest(AlgorithmSpec):
    """Local steps of length zero."""

    source = "none"
    fixed_point = "any"

    kind: Literal["at_rest"] = "at_rest"

    def rule(self) -> ClientRule:
        return Resting()


@dataclass(frozen=True)
class TwoModels(ClientRule):
    """Trains two models in each round."""

    def models_trained(self) -> int:
        return 2


class Twice(AlgorithmSpec):
    """Clients train two models."""

    source = "none"
    fixed_point = "any"

    kind: Literal["twice"] = "twice"

    def rule(self) -> ClientRule:
        return TwoModels()


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised"])
@pytest.mark.parametrize("policy", ["local", "average"])
def test_a_rule_whose_steps_are_zero_leaves_the_model_at_rest(policy: str, engine: str) -> None:
    spec = whole_batches(
        own("batch_normalised", batch_norm=policy), 1, algorithm=AtRest(), execution={"engine": engine}
    )
    simulation = Simulation(spec, 0)
    before = simulation._server.x.clone()
    simulation.advance()
    assert torch.equal(simulation._server.x, before)


def test_a_rule_that_trains_several_models_is_refused_beside_local_batch_norm() -> None:
    with pytest.raises(SpecificationError, match="several models") as refused:
        whole_batches(own("batch_normalised", batch_norm="local"), 1, algorithm=Twice())
    assert refused.value.pointer == "/problem/model/batch_norm"
