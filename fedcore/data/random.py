"""Randomness by key, never by call order: (seed, purpose, round, client) name one stream, whoever draws from it and when."""

from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The generator of one stream: Philox (Salmon et al., 2011) with key (seed, purpose) and counter (., ., client, round).

    The low two words of the counter are the position in the stream, so streams of 2^128 blocks never meet.
    """
    key: Any = _Key(np.array([seed, label(purpose)], np.uint64))
    return np.random.Generator(np.random.Philox(key, counter=np.array([0, 0, client, round], np.uint64)))


@cache
def label(purpose: str) -> int:
    """What a purpose is in a key; there are a few dozen of them."""
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")


class _Key(ISeedSequence):
    """A key to be taken as it is. Given as `key`, NumPy would first gather entropy for nobody, which takes most of the time."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:  # noqa: ARG002 - NumPy's signature
        """The key's two words, which is what Philox asks for."""
        return self._words
