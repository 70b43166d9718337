"""How unequally clients are served: against a loop over clients, and where clients or classes are missing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcore.data.federated import Dataset, Samples, divide
from fedcore.measures.base import Measured
from fedcore.measures.fairness import fairness
from fedcore.models import zoo
from fedcore.problems import Problem, load_problem
from fedcore.problems.loss import SquaredError
from fedcore.problems.supervised import SupervisedProblem
from fedcore.spec.model import Linear
from fedcore.spec.problem import Problem as ProblemSpec
from tests.documents import QUADRATIC, SYNTHETIC


def load(document: dict[str, Any]) -> Problem:
    return load_problem(ProblemSpec.model_validate(document), seed=0, dtype=torch.float64, data_dir=Path("nowhere"))


def of(accuracies: list[float]) -> Measured:
    problem: Any = SimpleNamespace(client_accuracies=lambda _: np.array(accuracies))
    return fairness(problem, torch.zeros(1))


def test_spread_and_worst_decile_by_hand() -> None:
    """Of 11 clients the worst two make up the worst decile."""
    assert of([0.0, 0.5, *[1.0] * 9]) == pytest.approx(
        {"client_accuracy_std": np.sqrt(1.25 / 11 - (1.5 / 11) ** 2), "client_accuracy_worst_decile": 0.25}
    )


def test_one_client_is_its_own_worst_decile() -> None:
    assert of([0.75]) == {"client_accuracy_std": 0.0, "client_accuracy_worst_decile": 0.75}


def test_accuracies_are_those_of_each_clients_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load(SYNTHETIC["problem"])
    theta = torch.randn(problem.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = []
    for client in range(8):
        samples: Samples = problem.samples(client)  # type: ignore[attr-defined]
        scores: Tensor = problem._scores(theta, samples.features)  # type: ignore[attr-defined]
        expected.append(float((scores.argmax(1) == samples.labels).double().mean()))
    assert problem.client_accuracies(theta) == pytest.approx(expected, rel=1e-15)
    monkeypatch.setattr(problem, "capacity", 7)
    assert problem.client_accuracies(theta) == pytest.approx(expected, rel=1e-15)


def test_accuracies_of_real_labels_mean_nothing() -> None:
    samples = Samples(torch.eye(2), torch.tensor([0.5, 1.5]))
    data = divide(Dataset(samples, samples, "a test"), [np.array([0]), np.array([1])])
    problem = SupervisedProblem(data, zoo.build(Linear(kind="linear"), (2,), 1, seed=0), SquaredError(), 0.0)
    assert fairness(problem, problem.initial()) == {}


def test_a_problem_without_classes_has_none() -> None:
    problem = load(QUADRATIC["problem"])
    assert fairness(problem, problem.initial()) == {}
