"""The sizes of a problem, known without loading it: clients, samples, and the dimension D of its parameters."""

from fedcore.spec.dataset import AnyDataset, Emnist, Femnist, Synthetic
from fedcore.spec.exact import ExactProblem
from fedcore.spec.parameters import DataShape, parameters
from fedcore.spec.problem import Problem
from fedcore.spec.uploaded import Uploaded

_SHAPES = {
    "digits": DataShape((1, 8, 8), 10, 1_437),
    "mnist": DataShape((1, 28, 28), 10, 60_000),
    "fashion_mnist": DataShape((1, 28, 28), 10, 60_000),
    "cifar10": DataShape((3, 32, 32), 10, 50_000),
    # What files of LEAF hold is known only once they are read: as many samples as in FedProx, Table 1.
    "femnist": DataShape((1, 28, 28), 62, 18_345),
    "shakespeare": DataShape((80,), 80, 517_106, symbols=80),
    "sent140": DataShape((25,), 2, 40_783, symbols=30_000, embedding=300),
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
    """Shape of one sample, number of classes and, where it is known beforehand, of training samples; else what to expect."""
    if isinstance(dataset, Synthetic):
        return DataShape((SYNTHETIC_FEATURES,), SYNTHETIC_CLASSES, _SYNTHETIC_MEAN_SAMPLES * dataset.clients)
    if isinstance(dataset, Emnist):
        return DataShape((1, 28, 28), *_EMNIST[dataset.split])
    if isinstance(dataset, Femnist) and dataset.classes != "all":
        return _SHAPES["femnist"]._replace(classes=10)
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
    return parameters(problem.model, data_shape(problem.dataset))
