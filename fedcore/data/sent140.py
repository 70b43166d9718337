"""Sentiment140 by account: tweets of 25 words, from LEAF's JSON files, and GloVe's vectors of the words."""

import re
from collections import defaultdict
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.federated import Dataset, Ids, Samples
from fedcore.data.leaf import read_leaf
from fedcore.errors import DataUnavailableError

WORDS = 25
VECTOR = 300
GLOVE = "glove.6B.300d.txt"
UNKNOWN = 0
"""The symbol of a word without a vector, and of what pads a short tweet: all zeros, as in LEAF."""
_TEXT = 4
"""Where the text stands in a tweet: id, date, query, account, text."""
_POSITIVE = {1: 1, "1": 1, "4": 1, 0: 0, "0": 0}
"""LEAF writes 1 for a positive tweet and 0 for another, FedProx's copy "4" and "0"."""


def sent140(data_dir: Path) -> Dataset:
    """Words [n, 25] as numbers, their vectors [V, 300], and whether each tweet is positive."""
    numbers: defaultdict[str, int] = defaultdict(count(1).__next__)

    def encode(x: list[Any], y: list[Any]) -> tuple[NDArray[np.int32], Ids]:
        return np.array([_words(tweet[_TEXT], numbers) for tweet in x], np.int32), np.array([_POSITIVE[label] for label in y], np.int64)

    dataset = read_leaf("sent140", "Sent140 (LEAF)", data_dir, encode)
    vectors = _vectors(data_dir / GLOVE, numbers)
    known = vectors.any(1)
    train, test = (Samples(part.features * known[part.features], part.labels) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test, vectors=vectors)


def _words(text: str, numbers: defaultdict[str, int]) -> list[int]:
    words = [numbers[word] for word in re.findall(r"[\w']+|[.,!?;]", text)[:WORDS]]
    return words + [UNKNOWN] * (WORDS - len(words))


def _vectors(path: Path, numbers: dict[str, int]) -> Tensor:
    """[V, 300]: of each number the vector of its word; zeros for words that GloVe does not know."""
    vectors = np.zeros((len(numbers) + 1, VECTOR), np.float32)
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                word, _, values = line.partition(" ")
                if word in numbers:
                    vectors[numbers[word]] = np.fromstring(values, np.float32, sep=" ")
    except (OSError, ValueError) as error:
        raise DataUnavailableError(
            f"GloVe's vectors cannot be read from {path} ({error}); put {GLOVE} there (nlp.stanford.edu/projects/glove, in glove.6B.zip), "
            "or set FEDQ_DATA_DIR to where it is"
        ) from error
    return torch.from_numpy(vectors)
