"""The block `aggregator`, in place of the aggregation of the algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore import ExperimentSpec
from fedcore.algorithms import AGGREGATORS
from fedcore.algorithms.aggregators import AggregatorSpec, EachModel
from fedcore.block import kind_of
from fedcore.core import Aggregate, Aggregator, Cohort, Models, Vectors
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


GROUPS = np.array([0, 2, 0, 2, 2, 0, 0, 2, 2])
"""The model that each of nine clients trained, of three: none trained the second."""


def several(within: Aggregator, common: Tensor | None = None) -> tuple[EachModel, Cohort, Tensor]:
    """An aggregator of three models with five parameters, a cohort and its changes."""
    draw = torch.Generator().manual_seed(3)
    deltas = torch.randn(len(GROUPS), 5, generator=draw, dtype=torch.float64)
    weights = torch.rand(len(GROUPS), generator=draw, dtype=torch.float64) + 0.1
    ones = torch.ones_like(weights)
    cohort = Cohort(
        clients=torch.arange(len(GROUPS)),
        weights=weights,
        share=ones / 20,
        objective=ones / 20,
        population=20,
        steps=ones,
        normaliser=ones,
        order=torch.randperm(len(GROUPS), generator=draw),
        losses=ones,
        models=torch.from_numpy(GROUPS),
    )
    return EachModel(within, Models(kept=3, common=common)), cohort, deltas


def directions(aggregator: EachModel, cohort: Cohort, deltas: Tensor) -> NDArray[np.float64]:
    sums = aggregator.weighted_sums(cohort)
    seen = deltas if sums is None else sums @ deltas
    state = aggregator.start(torch.zeros(15, dtype=torch.float64))
    return aggregator.combine(seen, cohort, state).direction.view(3, 5).numpy()


def test_the_mean_of_each_model_is_that_of_its_clients_by_their_weights() -> None:
    aggregator, cohort, deltas = several(Aggregator())
    weights, found = cohort.weights.numpy(), directions(aggregator, cohort, deltas)
    for model in (0, 2):
        rows = model == GROUPS
        mean = np.average(deltas.numpy()[rows], axis=0, weights=weights[rows])
        np.testing.assert_allclose(found[model], weights.sum() * mean, rtol=1e-13)
    assert not found[1].any()


@pytest.mark.parametrize("shared", [False, True])
def test_the_median_of_each_model_is_that_of_its_clients(shared: bool) -> None:
    """And of what all have in common, that of all clients."""
    common = torch.tensor([True, False, True, False, False]) if shared else None
    aggregator, cohort, deltas = several(AGGREGATORS.validate({"kind": "median"}).build(), common)
    found, all_ = directions(aggregator, cohort, deltas), np.median(deltas.numpy(), axis=0)
    expected = np.zeros((3, 5))
    for model in (0, 2):
        expected[model] = np.median(deltas.numpy()[model == GROUPS], axis=0)
    if common is not None:
        expected[:, common.numpy()] = all_[common.numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_each_model_has_a_state_of_its_own() -> None:
    """As if the clients of a model were the only ones, in each of three rounds."""
    within = AGGREGATORS.validate({"kind": "centred_clipping"}).build()
    aggregator, cohort, deltas = several(within)
    state = aggregator.start(torch.zeros(15, dtype=torch.float64))
    alone = {model: within.start(torch.zeros(5, dtype=torch.float64)) for model in (0, 2)}
    for _ in range(3):
        found = aggregator.combine(deltas, cohort, state)
        state = found.aggregator_state
        for model, own in alone.items():
            rows = torch.from_numpy(model == GROUPS)
            part = cohort.without(~rows)
            part = replace(
                part, models=None, weights=part.weights * cohort.weights.sum() / part.weights.sum()
            )
            expected = within.combine(deltas[rows], part, own)
            alone[model] = expected.aggregator_state
            torch.testing.assert_close(found.direction.view(3, 5)[model], expected.direction)


@pytest.mark.parametrize("member", AGGREGATORS.builtin, ids=kind_of)
def test_clusters_run_beside_every_aggregator(member: type[AggregatorSpec]) -> None:
    """And are resumed at every round."""
    block = member(**{"kind": kind_of(member), **member.example})

    def make(**changes: Any) -> ExperimentSpec:
        return specification(
            QUADRATIC,
            algorithm={"kind": "ifca", "clusters": 2, "spread": 2.0},
            aggregator=block,
            rounds=3,
            **changes,
        )

    runs.resumes_at_every_round(make)
    runs.engines_agree(make)


@dataclass(frozen=True)
class Restless(Aggregator):
    """Moves the model in every round, also where no client arrives."""

    moves_alone = True

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def combine(self, deltas: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        return Aggregate(deltas.new_ones(deltas.shape[1]), cohort.weights, aggregator_state)


class RestlessSpec(AggregatorSpec):
    """One step along ones in each round."""

    averages_models = True

    kind: Literal["restless"] = "restless"

    def build(self) -> Aggregator:
        return Restless()


@pytest.mark.parametrize("kind", ["uniform", "without_replacement"])
def test_a_round_without_clients_adds_its_direction_to_the_model_as_it_is(kind: str) -> None:
    """Also under a scheme that scales the model by the weights of those that arrive, which are none."""
    simulation = Simulation(
        specification(
            QUADRATIC,
            aggregator=RestlessSpec(),
            participation={"kind": kind, "clients_per_round": 2},
            systems={"stragglers": {"fraction": 1.0, "policy": "drop"}},
            rounds=1,
        ),
        seed=0,
    )
    before = simulation.state.server.x.clone()
    assert simulation.advance().local_steps == 0
    assert torch.equal(simulation.state.server.x, before + 1)
