"""Problems: what a specification's `problem` block becomes."""

from functools import lru_cache
from pathlib import Path

import torch

from fedcore.data.federated import FederatedData, group
from fedcore.data.images import images
from fedcore.data.partition import partition
from fedcore.data.synthetic import synthetic
from fedcore.problems.base import Problem, Stacked
from fedcore.problems.least_squares import load_least_squares
from fedcore.problems.quadratic import load_quadratic
from fedcore.problems.supervised import SupervisedProblem
from fedcore.spec.dataset import LeastSquares, Quadratic, Synthetic
from fedcore.spec.problem import Problem as ProblemSpec
from fedcore.spec.shapes import data_shape

__all__ = ["Problem", "Stacked", "load_problem"]

_CACHED_DATA_SETS = 4


def load_problem(spec: ProblemSpec, seed: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32, data_dir: Path) -> Problem:
    """The problem of a run, its data on `device` in `dtype`.

    Raises DataUnavailableError when the data set is not under `data_dir`, SpecificationError when it cannot be divided as asked.
    """
    if isinstance(spec.dataset, Quadratic):
        return load_quadratic(spec.dataset, device, dtype)
    if isinstance(spec.dataset, LeastSquares):
        return load_least_squares(spec.dataset, device, dtype)
    assert spec.model is not None
    data = _federated(spec.model_copy(update={"model": None}), seed, device, dtype, data_dir)
    return SupervisedProblem(data, spec.model, seed)


# The arms of an experiment share their data: one copy serves them all.
@lru_cache(maxsize=_CACHED_DATA_SETS)
def _federated(spec: ProblemSpec, seed: int, device: str, dtype: torch.dtype, data_dir: Path) -> FederatedData:
    dataset = spec.dataset
    if isinstance(dataset, Synthetic):
        return synthetic(dataset, seed if dataset.seed is None else dataset.seed).to(device, dtype)
    assert spec.partition is not None
    assert not isinstance(dataset, Quadratic | LeastSquares)
    whole = images(dataset, data_dir)
    parts = partition(spec.partition, whole.train.labels.numpy(), seed)
    return group(whole.train, parts, whole.test, data_shape(dataset).classes, whole.source).to(device, dtype)
