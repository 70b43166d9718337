"""Declarations that parts of an algorithm make of their methods, and how far subclasses inherit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from torch import Tensor

from fedcore.algorithms.aggregators import AggregatorSpec
from fedcore.algorithms.base import RoundLaw
from fedcore.algorithms.fedavg import FedAvg
from fedcore.algorithms.fedprox import FedProx, Proximal
from fedcore.compression.top_k import KeepLargest, KeepLargestDifference
from fedcore.core import (
    AffineForm,
    Aggregator,
    ClientContext,
    ClientRule,
    Cohort,
    Compressor,
    Solver,
)
from fedcore.errors import SpecificationError
from fedcore.simulation.local_run import run
from fedcore.solvers.optimisers import MomentumSolver
from tests.builders.specifications import SYNTHETIC, specification


@dataclass(frozen=True)
class Further(Proximal):
    """Twice the gradient, and no form of its own."""

    def direction(self, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return super().direction(2 * grad, y, context)


class FurtherSpec(FedProx):
    """FedProx with twice the gradient."""

    kind: Literal["further"] = "further"  # type: ignore[assignment]

    def rule(self) -> ClientRule:
        return Further(self.mu)


class Doubling:
    """Not a part by itself."""

    def gradient(self, at: object, y: Tensor, context: ClientContext) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Mixed(Doubling, Proximal):
    """Its gradient stands before the form that it inherits."""


@dataclass(frozen=True)
class Stated(Further):
    """A subclass that says what its form is."""

    def affine_form(self) -> AffineForm:
        return AffineForm(3.0)


@dataclass(frozen=True)
class Cautious(MomentumSolver):
    """Momentum with another direction."""

    def direction(self, rule: ClientRule, grad: Tensor, y: Tensor, context: ClientContext) -> Tensor:
        return grad


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


def test_a_form_is_not_inherited_past_a_method_that_it_describes() -> None:
    assert Proximal(0.5).affine_form() == AffineForm(0.5)
    assert Further(0.5).affine_form() is None
    assert Mixed(0.5).affine_form() is None
    assert Stated(0.5).affine_form() == AffineForm(3.0)
    assert MomentumSolver(momentum=0.9).momentum_form() == 0.9
    assert Cautious(momentum=0.9).momentum_form() is None
    assert not Cautious(momentum=0.9).is_linear()
    assert Solver().is_linear()


def test_only_feedback_that_adds_the_rest_to_the_next_message_sends_it_later() -> None:
    assert Compressor(error_feedback=True).telescopes()
    assert KeepLargest(error_feedback=True).telescopes()
    assert not KeepLargest().telescopes()
    assert not KeepLargestDifference(error_feedback=True).telescopes()
    assert Later().telescopes()
    assert not Never(error_feedback=True).telescopes()


def test_statements_of_an_algorithm_on_its_parts_are_not_inherited_past_them() -> None:
    class Renamed(FedAvg):
        """FedAvg under another name."""

    class Other(FedAvg):
        """Another rule."""

        def rule(self) -> ClientRule:
            return Further(0.5)

    assert Renamed.averages_models
    assert isinstance(Renamed().round_law(0.0, uniform=True), RoundLaw)
    assert not Other.averages_models
    assert Other().round_law(0.0, uniform=True) is None


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


class Forgetful(AggregatorSpec):
    """Asks for each change, and does not say how they are combined."""

    kind: Literal["forgetful"] = "forgetful"

    def build(self) -> Aggregator:
        return ForgetsToCombine()


@dataclass(frozen=True)
class ForgetsToCombine(Aggregator):
    """Its direction would be the change of the first client."""

    def weighted_sums(self, cohort: Cohort) -> None:
        return None


def test_an_aggregator_that_asks_for_each_change_and_combines_none_is_refused() -> None:
    with pytest.raises(SpecificationError, match="but not `combine`") as refused:
        specification(SYNTHETIC, aggregator=Forgetful())
    assert refused.value.pointer == "/aggregator"
