"""Counted work, against work counted by hand."""

import pytest

from fedcore.spec import ExperimentSpec
from fedcore.spec.problem import dimension
from fedq.planning.draws import play_draws
from fedq.planning.work import count_work, name_kind
from tests.builders.specifications import QUADRATIC, Document, specification
from tests.fedq.planning.test_evaluation import IMAGES


def work_of(spec: ExperimentSpec) -> float:
    (played,) = play_draws([spec])
    return count_work(spec, played)


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        # Gradients count three times a scored sample: 5,000 of them, 15,000 scored in the evaluation.
        ({}, 1_000 * (15_000 + 15_000)),
        ({"local": {"epochs": 2}}, 1_000 * (30_000 + 15_000)),
        ({"evaluation": {"every": 3}}, 1_000 * 15_000 + 334 * 15_000),
        ({"rounds": 10}, 10 * (15_000 + 15_000)),
        # A full gradient of all data of each client at the start of a round.
        ({"algorithm": {"kind": "fedlin"}}, 1_000 * (30_000 + 15_000)),
    ],
)
def test_work_is_gradients_and_scored_samples_times_parameters(changes: Document, samples: int) -> None:
    spec = specification(IMAGES, **changes)
    assert work_of(spec) == pytest.approx(samples * dimension(spec.problem))


def test_dense_networks_compute_a_gradient_in_the_time_of_a_score() -> None:
    spec = specification(IMAGES, problem={"model": {"kind": "logistic"}})
    assert work_of(spec) == pytest.approx(1_000 * (5_000 + 15_000) * dimension(spec.problem))


def test_an_exact_problem_has_work_and_a_kind() -> None:
    spec = specification(QUADRATIC)
    assert work_of(spec) > 0
    assert name_kind(spec) == "quadratic, engine auto"
