"""The sizes of a problem, known without loading it: clients, samples, and the dimension D of its parameters."""

from itertools import pairwise
from math import prod
from typing import NamedTuple

from fedcore.spec.dataset import AnyDataset, Emnist, ExactProblem, Synthetic
from fedcore.spec.problem import AnyModel, Cnn, Linear, Logistic, Mlp, Problem
from fedcore.spec.uploaded import Uploaded


class DataShape(NamedTuple):
    """What one sample looks like, and how many there are."""

    features: tuple[int, ...]
    classes: int
    """0 where labels are real numbers."""
    train_samples: int

    @property
    def outputs(self) -> int:
        """Numbers that a model gives for one sample: a score per class, or the one that is regressed."""
        return self.classes or 1


_SHAPES = {
    "digits": DataShape((1, 8, 8), 10, 1_437),
    "mnist": DataShape((1, 28, 28), 10, 60_000),
    "fashion_mnist": DataShape((1, 28, 28), 10, 60_000),
    "cifar10": DataShape((3, 32, 32), 10, 50_000),
}
_EMNIST = {
    "balanced": (47, 112_800),
    "byclass": (62, 697_932),
    "bymerge": (47, 697_932),
    "digits": (10, 240_000),
    "letters": (26, 124_800),
    "mnist": (10, 60_000),
}
SYNTHETIC_FEATURES, SYNTHETIC_CLASSES = 60, 10
_SYNTHETIC_MEAN_SAMPLES = 408
"""50 + E[lognormal(4, 2)], the part held for training: for estimates only."""


def data_shape(dataset: AnyDataset) -> DataShape:
    """Shape of one sample, number of classes, and (for `synthetic`, expected) number of training samples."""
    if isinstance(dataset, Synthetic):
        return DataShape((SYNTHETIC_FEATURES,), SYNTHETIC_CLASSES, _SYNTHETIC_MEAN_SAMPLES * dataset.clients)
    if isinstance(dataset, Emnist):
        return DataShape((1, 28, 28), *_EMNIST[dataset.split])
    if isinstance(dataset, Uploaded):
        return DataShape(dataset.known.features, dataset.known.classes, dataset.known.train_samples)
    if isinstance(dataset, ExactProblem):
        return DataShape((dataset.dim,), 0, population(Problem(dataset=dataset)))
    return _SHAPES[dataset.kind]


def population(problem: Problem) -> int:
    """Number of clients N."""
    if problem.partition is not None:
        return problem.partition.clients
    dataset = problem.dataset
    if isinstance(dataset, Synthetic):
        return dataset.clients
    if isinstance(dataset, Uploaded):
        assert dataset.known.clients is not None
        return dataset.known.clients
    assert isinstance(dataset, ExactProblem)
    if dataset.clients:
        return len(dataset.clients)
    assert dataset.generate is not None
    return dataset.generate.clients


def dimension(problem: Problem) -> int:
    """Number of parameters D."""
    if isinstance(problem.dataset, ExactProblem):
        return problem.dataset.dim
    assert problem.model is not None
    shape = data_shape(problem.dataset)
    return _parameters(problem.model, shape.features, shape.outputs)


def _parameters(model: AnyModel, features: tuple[int, ...], classes: int) -> int:
    match model:
        case Linear() | Logistic():
            return _dense(prod(features), classes)
        case Mlp(hidden=hidden):
            return _dense(prod(features), *hidden, classes)
        case Cnn(channels=(first, second), hidden=hidden):
            channels, height, width = features
            convolutions = 25 * channels * first + first + 25 * first * second + second
            norms = 2 * (first + second) if model.norm == "group" else 0
            return convolutions + norms + _dense(second * (height // 4) * (width // 4), hidden, classes)


def _dense(*widths: int) -> int:
    return sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(widths))
