"""Figures of clients on sequences: a label counts once, in whichever sequence it stands."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedcore.data.federated import FederatedData, Ids, Samples, UndividedDataset, divide
from fedcore.models.losses import CrossEntropy
from fedcore.problems.network import PRIVATE, STATISTICS, NetworkProblem, supervised_problem
from fedcore.problems.supervised import SupervisedProblem

SYMBOLS, LENGTH, NONE = 5, 4, -100
OWNERS = np.array([0, 0, 1, 1, 2, -1])
LABELLED = [4, 1, 3, 2, 0, 4]
"""Labels of each sequence: client 2 has none, and the last sequence no owner."""


def sequences() -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(3)
    features = torch.from_numpy(draw.integers(SYMBOLS, size=(6, LENGTH)))
    # The scores below predict the symbol itself: right is about every second label.
    labels = torch.where(torch.from_numpy(draw.random((6, LENGTH)) < 0.5), features, (features + 1) % SYMBOLS)
    for row, count in enumerate(LABELLED):
        labels[row, count:] = NONE
    return features, labels


def data(*, owned: bool) -> FederatedData:
    features, labels = sequences()
    samples = Samples(features, labels)
    parts = [np.array([0, 1]), np.array([2, 3]), np.array([4])]
    return divide(UndividedDataset(samples, samples, "sequences"), parts, OWNERS if owned else None)


class Normed(nn.Module):
    """Scores of each symbol, normalised over a mini-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.norm = nn.Embedding(SYMBOLS, SYMBOLS), nn.BatchNorm1d(SYMBOLS)

    def forward(self, symbols: Tensor) -> Tensor:
        scores: Tensor = self.scores(symbols)
        return self.norm(scores.transpose(1, 2)).transpose(1, 2)


def longhand(module: nn.Module, rows: list[int]) -> float:
    """Labels that are predicted over labels, counted one by one."""
    features, labels = sequences()
    scores = module.eval()(features)
    places = [(row, place) for row in rows for place in range(LENGTH) if labels[row, place] >= 0]
    right = [scores[row, place].argmax() == labels[row, place] for row, place in places]
    return sum(map(bool, right)) / len(right) if right else float("nan")


@pytest.mark.parametrize("owned", [True, False], ids=["test samples", "training samples"])
def test_the_accuracy_of_a_client_is_the_share_of_its_labels(owned: bool) -> None:
    module = nn.Embedding(SYMBOLS, SYMBOLS, _weight=torch.eye(SYMBOLS))
    problem = SupervisedProblem(data(owned=owned), module, CrossEntropy(), 0.0)
    theta, expected = problem.initial(), [longhand(module, rows) for rows in ([0, 1], [2, 3], [4])]
    found = problem.client_accuracies(theta)
    assert found is not None
    np.testing.assert_array_equal(found, expected)
    # That differs from the mean over sequences.
    assert found[0] != np.mean([longhand(module, [0]), longhand(module, [1])])
    if owned:
        personal = problem.accuracies_of(theta.expand(3, -1), np.arange(3))
        np.testing.assert_array_equal(personal, expected)
        # Weighted by labels, the accuracies make up that of all.
        of_all = np.array([*found[:2], longhand(module, [5])]) @ [5, 5, 4] / 14
        assert problem.evaluate(theta, ["test_accuracy"])["test_accuracy"] == pytest.approx(of_all, abs=1e-15)


def test_the_accuracy_of_chance_counts_labels_and_not_sequences() -> None:
    _, labels = sequences()
    known = labels[labels >= 0].tolist()
    problem = SupervisedProblem(data(owned=False), nn.Embedding(SYMBOLS, SYMBOLS), CrossEntropy(), 0.0)
    assert problem.chance_accuracy == max(map(known.count, known)) / sum(LABELLED)


def test_labels_count_where_each_client_has_its_own_batch_norm() -> None:
    torch.manual_seed(1)
    module = Normed()
    problem = supervised_problem(data(owned=True), module, CrossEntropy(), 0.0, None, "local")
    assert isinstance(problem, NetworkProblem)
    names = ["test_loss", "test_accuracy", "test_perplexity"]
    shared = problem.evaluate(problem.initial(), names)

    def own(clients: Ids) -> dict[str, Tensor]:
        kept = {STATISTICS: problem.statistics, PRIVATE: problem.private}
        return {name: value.expand(len(clients), -1) for name, value in kept.items()}

    bound = problem.bound(None, own)
    assert bound.evaluate(problem.initial(), names) == pytest.approx(shared, rel=1e-12)
    found = bound.client_accuracies(problem.initial())
    np.testing.assert_array_equal(found, [longhand(module, rows) for rows in ([0, 1], [2, 3], [4])])
