"""LEAF's JSON files (Caldas et al., 2018): who made which samples, split into training and test files."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.data.federated import Dataset, Ids, Keys, Samples
from fedcore.errors import DataUnavailableError

PARTS = ("train", "test")
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError)
"""What files raise that are missing, cut short, or of another form."""


class Made(NamedTuple):
    """What one user made: features [n, ...] and labels [n]."""

    user: str
    features: NDArray[Any]
    labels: Ids


Encode = Callable[[list[Any], list[Any]], tuple[NDArray[Any], Ids]]
"""A user's `x` and `y` as they stand in the file to features and labels."""


def read_leaf(kind: str, name: str, data_dir: Path, encode: Encode) -> Dataset:
    """Read `kind`/train/*.json and `kind`/test/*.json under `data_dir`, or under `kind`/data as in a copy of LEAF.

    Raises DataUnavailableError when they are not there or cannot be read.
    """
    folder = next((place for place in (data_dir / kind, data_dir / kind / "data") if (place / "train").is_dir()), data_dir / kind)
    try:
        train, test = (list(_users(folder / part, encode)) for part in PARTS)
        return assemble(train, test, name)
    except _UNREADABLE as error:
        raise DataUnavailableError(
            f"{name} cannot be read from {folder} ({type(error).__name__}: {error}); make its JSON files with LEAF (leaf.cmu.edu) and "
            f"put them under {data_dir}/{kind}/train and {data_dir}/{kind}/test, or set FEDQ_DATA_DIR to where they are"
        ) from error


def _users(folder: Path, encode: Encode) -> Iterator[Made]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"there are no JSON files in {folder}")
    for file in files:
        # One file at a time: as Python objects they take many times the memory of the arrays.
        document = json.loads(file.read_text(encoding="utf-8"))
        for user in document["users"]:
            x, y = document["user_data"][user]["x"], document["user_data"][user]["y"]
            if len(x) != len(y):
                raise ValueError(f"{user} in {file.name} has {len(x)} samples but {len(y)} labels")
            if x:
                yield Made(user, *encode(x, y))


def assemble(train: list[Made], test: list[Made], name: str) -> Dataset:
    """One data set of what all users made; those who made nothing are no users. Raises ValueError where there is nothing at all."""
    train, test = ([made for made in part if len(made.labels)] for part in (train, test))
    if not train or not test:
        raise ValueError("there are no samples for training and testing")
    numbers = {made.user: number for number, made in enumerate(train)}
    if len(numbers) < len(train):
        raise ValueError("a user appears twice in the training files")
    keys = (np.repeat([numbers.get(made.user, -1) for made in part], [len(made.labels) for made in part]) for part in (train, test))
    return Dataset(_together(train), _together(test), name, Keys(*keys))


def _together(part: list[Made]) -> Samples:
    features, labels = (np.concatenate(arrays) for arrays in ([made.features for made in part], [made.labels for made in part]))
    return Samples(torch.from_numpy(features), torch.from_numpy(labels))
