"""The block `aggregator`, in place of the aggregation of the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from fedcore.algorithms.aggregators import AggregatorSpec
from fedcore.core import Aggregate, Aggregator, Cohort, Vectors
from fedcore.errors import NoClosedFormError, SpecificationError
from fedcore.simulation.simulation import Simulation
from fedcore.testing import runs
from fedcore.theory.closed_forms import predict
from tests.builders.specifications import QUADRATIC, SYNTHETIC, Document, specification


@dataclass(frozen=True)
class Clip(Aggregator):
    radius: float

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def combine(self, deltas: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        coefficients = cohort.weights * (self.radius / deltas.norm(dim=1)).clamp(max=1)
        return Aggregate(coefficients @ deltas, coefficients, aggregator_state)


class Clipped(AggregatorSpec):
    """The weighted mean of changes that are cut to a length."""

    kind: Literal["clipped"] = "clipped"
    radius: float = 0.1
    """Longest change."""

    def build(self) -> Aggregator:
        return Clip(self.radius)


def model(base: Document, **changes: object) -> Tensor:
    simulation = Simulation(specification(base, rounds=3, **changes), 1)
    for _ in range(3):
        simulation.advance()
    return torch.cat([value.flatten() for value in simulation.model().values()])


@pytest.mark.parametrize("kind", ["fedavg", "scaffold", "fedavgm"])
def test_the_mean_is_the_aggregation_of_an_algorithm_without_its_own(kind: str) -> None:
    algorithm = {"kind": kind}
    given = model(SYNTHETIC, algorithm=algorithm, aggregator={"kind": "mean"})
    assert torch.equal(given, model(SYNTHETIC, algorithm=algorithm))


def test_an_own_aggregator_bounds_the_step_of_the_server() -> None:
    simulation = Simulation(specification(QUADRATIC, aggregator=Clipped(radius=1e-3)), 1)
    before = simulation.model()["x"]
    simulation.advance()
    assert float((simulation.model()["x"] - before).norm()) <= 1e-3 * (1 + 1e-12)


def test_an_aggregator_with_a_bound_that_is_never_reached_is_the_mean() -> None:
    torch.testing.assert_close(
        model(SYNTHETIC, aggregator=Clipped(radius=1e9)), model(SYNTHETIC), rtol=1e-6, atol=1e-7
    )


def test_a_run_with_an_aggregator_resumes_at_every_round() -> None:
    runs.resumes_at_every_round(lambda: specification(SYNTHETIC, rounds=3, aggregator=Clipped()))


@pytest.mark.parametrize(("kind", "reason"), [("fedexp", "of its own"), ("feddyn", "average|of its own")])
def test_algorithms_that_fix_the_aggregation_refuse_another(kind: str, reason: str) -> None:
    with pytest.raises(SpecificationError, match=f"/aggregator.*({reason})"):
        specification(SYNTHETIC, algorithm={"kind": kind}, aggregator={"kind": "mean"})


def test_there_is_no_closed_form_with_an_aggregator() -> None:
    with pytest.raises(NoClosedFormError):
        predict(specification(QUADRATIC, aggregator=Clipped()), 10)
