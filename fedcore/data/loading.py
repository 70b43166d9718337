"""Loads the data set of a specification and divides it over the clients of a run."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data import user_datasets
from fedcore.data.datasets import Femnist, KeyedDataset, Sent140, Shakespeare, Synthetic, Uploaded, data_shape
from fedcore.data.exact import ExactProblem
from fedcore.data.federated import (
    FederatedData,
    Ids,
    Samples,
    UndividedDataset,
    checksum,
    divide,
    hold_out,
    merge_splits,
    owners_of,
    validate_samples,
    with_tests_of,
)
from fedcore.data.images import Images, images
from fedcore.data.leaf import femnist, sent140, shakespeare
from fedcore.data.partition import Partition, partition
from fedcore.data.synthetic import synthetic
from fedcore.data.user_datasets import DatasetStorage

if TYPE_CHECKING:
    from fedcore.spec.problem import Problem as ProblemSpec


def uploaded(spec: Uploaded, shelf: DatasetStorage) -> UndividedDataset | FederatedData:
    """Read the data set from `shelf` and check its digest; FederatedData if it names clients.

    Raises DataUnavailableError.
    """
    with shelf.open(spec) as file:
        samples = user_datasets.load(file, spec.known)
    dataset = UndividedDataset(
        _part(samples, ~samples.test), _part(samples, samples.test), _source(spec), checksum=spec.known.digest
    )
    if samples.clients is None:
        return dataset
    assert samples.sizes is not None
    # Stable, so that each client's samples keep the order of the file.
    order = np.argsort(samples.clients.codes[~samples.test], kind="stable")
    return FederatedData(dataset, torch.from_numpy(order), np.cumsum([0, *samples.sizes]))


def _part(samples: user_datasets.UserSamples, rows: NDArray[np.bool_]) -> Samples:
    whole = bool(rows.all())
    features, labels = (array if whole else array[rows] for array in (samples.features, samples.label))
    numbers = torch.from_numpy(features)
    # Bytes save space in the file; here whole numbers would be symbols.
    return Samples(numbers if numbers.is_floating_point() else numbers.float(), torch.from_numpy(labels))


def _source(spec: Uploaded) -> str:
    return f"uploaded {spec.id or 'file'} (sha256 {spec.known.digest})"


_CACHED_DATA_SETS = 2
_CACHED_PARTITIONS = 4


def federate(
    spec: ProblemSpec, seed: int, device: str, dtype: torch.dtype, data_dir: Path, shelf: DatasetStorage
) -> FederatedData:
    """The data of a run by client, on `device` and in `dtype`; uploaded data come from `shelf`.

    Raises DataUnavailableError if the data set is not under `data_dir`, SpecificationError if it
    cannot be divided.
    """
    if isinstance(spec.dataset, Synthetic):
        return _synthetic(
            spec.dataset, seed if spec.dataset.seed is None else spec.dataset.seed, device, dtype
        )
    assert not isinstance(spec.dataset, ExactProblem)
    dataset = (
        _uploaded(spec.dataset, device, dtype, shelf)
        if isinstance(spec.dataset, Uploaded)
        else _in_one_piece(spec.dataset, device, dtype, data_dir)
    )
    if isinstance(dataset, FederatedData):
        return dataset
    assert spec.partition is not None
    return _shared_out(_Whole(dataset), spec.partition, seed)


class _Whole:
    """A data set, by identity."""

    def __init__(self, dataset: UndividedDataset) -> None:
        self.dataset = dataset

    def __hash__(self) -> int:
        return id(self.dataset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Whole) and self.dataset is other.dataset


def _shared_out(whole: _Whole, spec: Partition, seed: int) -> FederatedData:
    dataset = whole.dataset
    if spec.by_owner:
        assert dataset.keys is not None
        keys = dataset.keys.train
        parts = _parts(whole, spec, seed)
        chosen = np.array([keys[part[0]] for part in parts])
        tested = with_tests_of(dataset, chosen)
        assert tested.keys is not None
        return divide(tested, parts, owners_of(tested.keys.test, chosen))
    share = getattr(spec, "hold_out", None)
    if share is None:
        return divide(dataset, _parts(whole, spec, seed))
    together = merge_splits(dataset)
    parts = partition(spec, together.train.labels.numpy(force=True), seed)
    return hold_out(together, parts, share, seed if spec.seed is None else spec.seed)


# Arms that differ in anything else are divided alike, seed by seed.
@lru_cache(maxsize=_CACHED_PARTITIONS)
def _parts(whole: _Whole, spec: Partition, seed: int) -> list[Ids]:
    labels, keys = whole.dataset.train.labels.numpy(force=True), whole.dataset.keys
    return partition(spec, labels, seed, None if keys is None else keys.train)


# One copy of the samples serves all arms of an experiment, and of files all seeds too.
@lru_cache(maxsize=_CACHED_DATA_SETS)
def _in_one_piece(
    spec: Images | KeyedDataset, device: str, dtype: torch.dtype, data_dir: Path
) -> UndividedDataset:
    dataset = validate_samples(_read(spec, data_dir), data_shape(spec))
    return replace(dataset, checksum=checksum(dataset)).to(device, dtype)


def _read(spec: Images | KeyedDataset, data_dir: Path) -> UndividedDataset:
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
def _uploaded(
    spec: Uploaded, device: str, dtype: torch.dtype, shelf: DatasetStorage
) -> UndividedDataset | FederatedData:
    return uploaded(spec, shelf).to(device, dtype)
