"""Problems: what a specification's `problem` block becomes."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fedcore.data.federated import Dataset, FederatedData, divide, with_tests_of
from fedcore.data.femnist import femnist
from fedcore.data.images import Images, images
from fedcore.data.partition import partition
from fedcore.data.sent140 import sent140
from fedcore.data.shakespeare import shakespeare
from fedcore.data.sound import sound
from fedcore.data.synthetic import synthetic
from fedcore.data.uploaded import uploaded
from fedcore.models import zoo
from fedcore.problems.base import Problem, Stacked
from fedcore.problems.least_squares import load_least_squares
from fedcore.problems.loss import loss_of
from fedcore.problems.quadratic import load_quadratic
from fedcore.problems.supervised import SupervisedProblem
from fedcore.problems.transformed import Transformed
from fedcore.spec.dataset import Femnist, KeyedDataset, Sent140, Shakespeare, Synthetic
from fedcore.spec.exact import ExactProblem, LeastSquares, Quadratic
from fedcore.spec.participation import AnyParticipation, WithoutReplacement
from fedcore.spec.partition import ByKeyPartition
from fedcore.spec.problem import Problem as ProblemSpec
from fedcore.spec.shapes import data_shape
from fedcore.spec.uploaded import Uploaded
from fedcore.uploads.local import shelf as local_shelf
from fedcore.uploads.shelves import Shelf

__all__ = ["Problem", "Stacked", "load_problem", "trained_on"]

_CACHED_DATA_SETS = 2


def load_problem(
    spec: ProblemSpec,
    seed: int,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    data_dir: Path,
    shelf: Shelf | None = None,
) -> Problem:
    """The problem of a run, its data on `device` in `dtype`; users' own from `shelf`, or else from a folder of `data_dir`.

    Raises DataUnavailableError when the data set is not under `data_dir`, SpecificationError when it cannot be divided as asked.
    """
    if isinstance(spec.dataset, Quadratic):
        return load_quadratic(spec.dataset, device, dtype)
    if isinstance(spec.dataset, LeastSquares):
        return load_least_squares(spec.dataset, device, dtype)
    assert spec.model is not None
    shape = data_shape(spec.dataset)
    data = _data(spec, seed, device, dtype, data_dir, shelf or local_shelf(data_dir))
    module = zoo.build(spec.model, shape.features, shape.outputs, seed, data.dataset.vectors).to(dtype)
    return SupervisedProblem(data, module, loss_of(spec.model), spec.model.l2)


def trained_on(problem: Problem, participation: AnyParticipation) -> Problem:
    """What a run with this participation trains on: the problem, or the same objective with the p_i taken into the clients' own."""
    transformed = isinstance(participation, WithoutReplacement) and participation.transformed
    return Transformed(problem) if transformed else problem


def _data(spec: ProblemSpec, seed: int, device: str, dtype: torch.dtype, data_dir: Path, shelf: Shelf) -> FederatedData:
    if isinstance(spec.dataset, Synthetic):
        return _synthetic(spec.dataset, seed if spec.dataset.seed is None else spec.dataset.seed, device, dtype)
    assert not isinstance(spec.dataset, ExactProblem)
    dataset = (
        _uploaded(spec.dataset, device, dtype, shelf)
        if isinstance(spec.dataset, Uploaded)
        else _in_one_piece(spec.dataset, device, dtype, data_dir)
    )
    if isinstance(dataset, FederatedData):
        return dataset
    assert spec.partition is not None
    keys = dataset.keys.train if dataset.keys else None
    parts = partition(spec.partition, dataset.train.labels.numpy(force=True), seed, keys)
    if isinstance(spec.partition, ByKeyPartition) and keys is not None:
        dataset = with_tests_of(dataset, np.array([keys[part[0]] for part in parts]))
    return divide(dataset, parts)


# One copy of the samples serves all arms of an experiment, and of files all seeds too.
@lru_cache(maxsize=_CACHED_DATA_SETS)
def _in_one_piece(spec: Images | KeyedDataset, device: str, dtype: torch.dtype, data_dir: Path) -> Dataset:
    return sound(_read(spec, data_dir), data_shape(spec)).to(device, dtype)


def _read(spec: Images | KeyedDataset, data_dir: Path) -> Dataset:
    match spec:
        case Femnist():
            return femnist(spec, data_dir)
        case Shakespeare():
            return shakespeare(spec, data_dir)
        case Sent140():
            return sent140(data_dir)
        case _:
            return images(spec, data_dir)


@lru_cache(maxsize=_CACHED_DATA_SETS)
def _synthetic(spec: Synthetic, seed: int, device: str, dtype: torch.dtype) -> FederatedData:
    return synthetic(spec, seed).to(device, dtype)


@lru_cache(maxsize=_CACHED_DATA_SETS)
def _uploaded(spec: Uploaded, device: str, dtype: torch.dtype, shelf: Shelf) -> Dataset | FederatedData:
    return uploaded(spec, shelf).to(device, dtype)
