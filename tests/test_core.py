"""Declarations that parts of an algorithm make of their methods, and how far subclasses inherit them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from torch import Tensor

from fedcore.algorithms.fedavg import FedAvg
from fedcore.algorithms.fedprox import FedProx, Proximal
from fedcore.algorithms.robust import TrimmedMean
from fedcore.algorithms.scaffold import ControlVariates
from fedcore.compression.top_k import KeepLargest, KeepLargestDifference
from fedcore.core import (
    AffineForm,
    Aggregator,
    Algorithm,
    ClientContext,
    Compressor,
    Declaring,
    LocalSgd,
    Models,
    Rule,
    Solver,
    Statement,
)
from fedcore.errors import SpecificationError
from fedcore.simulation.local_run import run
from fedcore.systems.attacks import Attack
from tests.builders.specifications import SYNTHETIC, specification


@dataclass(frozen=True)
class Further(Proximal):
    """Twice the gradient, and no form of its own."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return super().direction(2 * grad, y, context)

    def affine_form(self) -> None:  # type: ignore[override]
        return None


class FurtherSpec(FedProx):
    """FedProx with twice the gradient."""

    kind: Literal["further"] = "further"  # type: ignore[assignment]

    def rule(self) -> Rule:
        return Further(self.mu)

    def round_law(self, prox_mu: float, *, uniform: bool) -> None:
        return None

    averages_models = True


@dataclass(frozen=True)
class Later(KeepLargest):
    """States that the rest is sent later."""

    def telescopes(self) -> bool:
        return True


@dataclass(frozen=True)
class Never(Later):
    """Feeds nothing back."""

    def feed_back(self, message: Tensor, residual: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.compress(message, drawn), residual

    def telescopes(self) -> bool:
        return False


OWN: dict[str, tuple[type[Any], tuple[str, ...], str]] = {
    "direction": (Proximal, ("direction",), "affine_form"),
    "gradient": (Proximal, ("gradient", "gradients_per_step"), "affine_form"),
    "count": (Rule, ("gradient",), "gradients_per_step"),
    "sends": (Rule, ("sends",), "sent"),
    "remember": (ControlVariates, ("remember",), "remembers"),
    "models": (Models, ("taken",), "plain"),
    "step": (Solver, ("step",), "momentum_form"),
    "feedback": (KeepLargest, ("feed_back",), "telescopes"),
    "sums": (Aggregator, ("weighted_sums",), "combine"),
    "median": (TrimmedMean, ("combine",), "bucketed"),
    "rule": (FedAvg, ("rule", "round_law"), "averages_models"),
    "law": (FedAvg, ("rule", "averages_models"), "round_law"),
    "forge": (Attack, ("forge",), "forges"),
    "poison": (Attack, ("poison",), "poisons"),
}
"""Classes, methods of their subclasses, and the statement that these lack."""


@pytest.mark.parametrize("name", OWN)
def test_a_class_with_a_method_of_its_own_states_what_describes_it(name: str) -> None:
    base, methods, statement = OWN[name]
    own = {method: getattr(base, method) for method in methods}
    with pytest.raises(
        TypeError, match=rf"Own has a `\w+` of its own, so it states `{statement}` anew, too: "
    ):
        type("Own", (base,), {"__module__": __name__, **own})
    stated = {**own, statement: getattr(base, statement)}
    assert issubclass(type("Own", (base,), {"__module__": __name__, **stated}), base)


def test_all_that_is_to_be_stated_is_said_at_once() -> None:
    with pytest.raises(TypeError) as refused:
        type("Own", (FedAvg,), {"__module__": __name__, "rule": FedAvg.rule})
    first, second = str(refused.value).split("; it ")
    assert first == (
        "Own has a `rule` of its own, so it states `averages_models` anew, too: `averages_models = False`"
    )
    assert second.startswith("has a `rule` of its own, so it states `round_law` anew, too: `def round_law(")


def test_every_statement_is_of_methods_that_there_are_and_has_a_value_that_is_always_right() -> None:
    def classes(base: type[Declaring]) -> Iterator[type[Declaring]]:
        yield base
        for member in base.__subclasses__():
            yield from classes(member)

    for member in classes(Declaring):
        for name, statement in vars(member).get("described", {}).items():
            assert isinstance(statement, Statement)
            assert all(callable(getattr(member, method)) for method in statement.methods)
            assert hasattr(member, name)
            assert statement.careful


@pytest.mark.parametrize(
    ("base", "name", "stated", "match"),
    [
        (
            Rule,
            "memory",
            "control",
            r"Own.memory must be a tuple of names, .* not 'control'",
        ),
        (Rule, "shared", Rule.sends, r"Own.shared must be a tuple of names"),
        (Models, "memory", (1,), r"Own.memory must be a tuple of names"),
        (Rule, "remembers", "exact", r"Own.remembers names 'exact'; known are trained, decoded"),
        (
            Rule,
            "needs",
            lambda _: {"full_gradients"},
            r"Own.needs\(\) names 'full_gradients'; known are",
        ),
        (Aggregator, "needs", lambda _: {"loss"}, r"Own.needs\(\) names 'loss'; known are normaliser, order"),
    ],
)
def test_what_nobody_reads_is_refused(base: type[Any], name: str, stated: object, match: str) -> None:
    part = type("Own", (base,), {"__module__": __name__, name: stated})()
    field = {Rule: "rule", Models: "models", Aggregator: "aggregator"}[base]
    with pytest.raises(TypeError, match=match):
        Algorithm(**{field: part})


class Doubling:
    """Not a part by itself."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return 2 * grad


def test_a_statement_is_not_inherited_past_a_method_that_is_mixed_in() -> None:
    with pytest.raises(TypeError, match="Mixed has a `direction` of its own, so it states `affine_form`"):
        type("Mixed", (Doubling, Proximal), {"__module__": __name__})


def test_where_a_base_class_states_what_is_always_right_nothing_is_asked() -> None:
    class Own(Rule):
        """A direction of its own, directly below the base class."""

        def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
            return grad.sign()

    assert Own().affine_form() is None
    assert LocalSgd().affine_form() == AffineForm()


def test_only_feedback_that_adds_the_rest_to_the_next_message_sends_it_later() -> None:
    assert Compressor(error_feedback=True).telescopes()
    assert KeepLargest(error_feedback=True).telescopes()
    assert not KeepLargest().telescopes()
    assert not KeepLargestDifference(error_feedback=True).telescopes()
    assert Later().telescopes()
    assert not Never(error_feedback=True).telescopes()


def test_the_engines_agree_on_a_subclass_with_another_direction_or_refuse_it() -> None:
    end = {}
    for engine in ("reference", "parallel", "vectorised"):
        spec = specification(SYNTHETIC, algorithm=FurtherSpec(mu=1.0), rounds=2, execution={"engine": engine})
        *_, last = run(spec)
        assert last.train_loss is not None
        end[engine] = last.train_loss
    np.testing.assert_allclose(list(end.values()), end["reference"], rtol=1e-5)
    with pytest.raises(SpecificationError, match="affine in the gradient"):
        specification(SYNTHETIC, algorithm=FurtherSpec(mu=1.0), execution={"engine": "compiled"})
