"""How far gradients disagree: against the definitions, at common stationary points, and in
chunks.
"""

from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore import run
from fedcore.measures import population_measures
from fedcore.measures.dissimilarity import dissimilarity
from fedcore.problems import TrainingProblem, load_problem
from fedcore.spec.problem import Problem as ProblemSpec
from tests.builders.specifications import SYNTHETIC, Document, quadratics
from tests.measures.test_contribution import first, spec

X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)


def load(document: Document) -> TrainingProblem:
    return load_problem(
        ProblemSpec.model_validate(document), seed=0, dtype=torch.float64, data_dir=Path("nowhere")
    )


def quadratic(clients: list[Document]) -> TrainingProblem:
    return load({"dataset": {"kind": "quadratic", "clients": clients}})


def springs(*optima: list[float]) -> TrainingProblem:
    """F_i(x) = 1/2 |x - e_i|^2."""
    dim = len(optima[0])
    return quadratic([{"H": np.eye(dim).tolist(), "e": optimum} for optimum in optima])


def test_dissimilarities_are_as_their_papers_define_them() -> None:
    clients = quadratics(count=5)
    problem = quadratic(clients)
    gradients = np.array([np.array(client["H"]) @ X.numpy() - client["e"] for client in clients])
    mean = problem.share @ gradients
    mean_square = problem.share @ (gradients**2).sum(1)
    expected = {
        "gradient_diversity": sqrt(mean_square / (mean**2).sum()),
        "b_dissimilarity": sqrt(mean_square / (mean**2).sum()),
        "gradient_variance": problem.share @ ((gradients - mean) ** 2).sum(1),
        "gradient_norm": sqrt((mean**2).sum()),
    }
    assert dissimilarity(problem, X) == pytest.approx(expected, rel=1e-12)


def test_dissimilarities_of_a_model_on_data_are_those_of_its_gradients() -> None:
    problem = load(SYNTHETIC["problem"])
    x = problem.initial()
    gradients = [problem.gradient(x, client, None) for client in range(8)]
    mean = sum(share * gradient for share, gradient in zip(problem.share, gradients, strict=True))
    variance = sum(
        share * float((gradient - mean).square().sum())
        for share, gradient in zip(problem.share, gradients, strict=True)
    )
    assert dissimilarity(problem, x)["gradient_variance"] == pytest.approx(variance, rel=1e-12)


def test_equal_clients_do_not_disagree() -> None:
    measured = dissimilarity(springs([1, 2, 3], [1, 2, 3]), X)
    norm = measured.pop("gradient_norm")
    assert norm == pytest.approx(float((X - torch.tensor([1.0, 2.0, 3.0])).norm()))
    assert measured == pytest.approx(
        {"gradient_diversity": 1, "b_dissimilarity": 1, "gradient_variance": 0}, abs=1e-12
    )


def test_where_only_the_mean_gradient_vanishes_both_ratios_are_infinite() -> None:
    measured = dissimilarity(springs([1, 0], [-1, 0]), torch.zeros(2, dtype=torch.float64))
    assert measured == {
        "gradient_diversity": inf,
        "b_dissimilarity": inf,
        "gradient_variance": 1.0,
        "gradient_norm": 0.0,
    }


def test_where_every_gradient_vanishes_clients_are_not_dissimilar() -> None:
    """FedProx, Definition 3: B = 1 at a common stationary point."""
    measured = dissimilarity(springs([1, 2], [1, 2]), torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert measured["b_dissimilarity"] == 1
    assert measured["gradient_variance"] == 0


def test_measuring_one_client_at_a_time_gives_the_same() -> None:
    problem = quadratic(quadratics(count=7))
    expected = dissimilarity(problem, X)
    assert dissimilarity(problem, X, chunk_bytes=1) == pytest.approx(expected, rel=1e-14)


def test_surrogate_diversity_weighs_the_mean_gradient_by_what_counted() -> None:
    """FedAWARE, equation (7), by hand: g = (-2, 0), (0, -1) at 0 and w = (1/4, 3/4) make |sum w
    g|^2 = 1/4 + 9/16.
    """
    problem, x = springs([2, 0], [0, 1]), torch.zeros(2, dtype=torch.float64)
    measured = dissimilarity(problem, x, np.array([0.25, 0.75]))
    assert measured["surrogate_diversity"] == pytest.approx(sqrt(2.5 / (13 / 16)), rel=1e-14)
    assert measured["gradient_diversity"] == pytest.approx(sqrt(2.5 / 1.25), rel=1e-14)


def test_surrogate_diversity_is_infinite_where_what_counted_vanishes() -> None:
    problem, x = springs([2, 0], [0, 0]), torch.zeros(2, dtype=torch.float64)
    assert dissimilarity(problem, x, np.array([0.0, 1.0]))["surrogate_diversity"] == inf


def test_only_what_is_asked_for_is_measured() -> None:
    problem, x = springs([1, 0], [0, 1]), torch.ones(2, dtype=torch.float64)
    assert population_measures(problem, x, None, ["train_loss"]) == {}
    assert population_measures(problem, x, None, ["b_dissimilarity", "test_loss"]).keys() == {
        "b_dissimilarity"
    }


def test_without_a_round_there_is_no_surrogate() -> None:
    problem, x = springs([1, 0], [0, 1]), torch.ones(2, dtype=torch.float64)
    assert population_measures(problem, x, None, ["surrogate_diversity"]) == {}


# Surrogates of diversity.


def test_the_surrogate_is_what_the_round_counted() -> None:
    """FedAvg's w is (1/2, 1/2) here: the numerator keeps p."""
    spec_ = spec(evaluation={"record_parameters": True})
    report = next(run(spec_))
    gradients = np.array(report.extra["x"]) - [4.0, -2.0]
    expected = np.sqrt(np.array([0.75, 0.25]) @ gradients**2) / abs(gradients.mean())
    assert report.extra["surrogate_diversity"] == pytest.approx(expected, rel=1e-13)


def test_training_on_the_transformed_objective_changes_no_diversity() -> None:
    """One full step of all clients moves alike with weights p_i on F_i and weights 1/N on p_i N
    F_i, and implies the same surrogate.
    """
    asked = {"measures": ["surrogate_diversity", "gradient_diversity"]}
    full, transformed = (
        first(
            participation=participation, systems={"steps": {"kind": "constant", "value": 1}}, evaluation=asked
        )
        for participation in (
            {"kind": "full"},
            {"kind": "without_replacement", "clients_per_round": 2, "transformed": True},
        )
    )
    assert transformed == pytest.approx(full, rel=1e-12)
    assert full["surrogate_diversity"] == pytest.approx(full["gradient_diversity"], rel=1e-12)
