"""Keyed randomness: (seed, purpose, round, client, step) name one stream, whatever the order of
calls.
"""

from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_FACTORS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], np.uint64)
_BUMPS = np.array([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], np.uint64)
_ROUNDS = 10
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def generator(seed: int, purpose: str, round: int = 0, client: int = 0, step: int = 0) -> np.random.Generator:
    """The generator of one stream: Philox (Salmon et al., 2011) with key (seed, purpose) and
    counter (., step, client, round).

    The low word of the counter is the position in the stream, so streams of 2^64 blocks never meet;
    nor do streams of 2^128 blocks where the purpose has no steps.
    """
    key: Any = _Key(np.array([seed, label(purpose)], np.uint64))
    return np.random.Generator(np.random.Philox(key, counter=np.array([0, step, client, round], np.uint64)))


def uniform_at(positions: NDArray[np.int64], seed: int, purpose: str, round: int = 0) -> NDArray[np.float64]:
    """Entries `positions` [m], all below n, of `generator(seed, purpose, round).random(n)`.

    Other entries are not drawn.
    """
    words = np.zeros((4, len(positions)), np.uint64)
    words[0], words[3] = positions // 4 + 1, round
    drawn = _philox(words, np.array([seed, label(purpose)], np.uint64))
    chosen: NDArray[np.uint64] = drawn[positions % 4, np.arange(len(positions))]
    return (chosen >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _philox(words: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Philox4x64-10 of the counters [4, m] under a key [2]: the blocks [4, m]."""
    even, odd = words[::2], words[1::2]
    for _ in range(_ROUNDS):
        even, odd = (_upper(even)[::-1] ^ odd ^ key[:, None]), (_FACTORS * even)[::-1]
        key = key + _BUMPS
    return np.stack([even[0], odd[0], even[1], odd[1]])


def _upper(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The upper halves of the products [2, m] of 128 bits of `words` and the factors."""
    low, high, factor_low, factor_high = words & _LOW, words >> _HALF, _FACTORS & _LOW, _FACTORS >> _HALF
    first = high * factor_low + (low * factor_low >> _HALF)
    second = low * factor_high + (first & _LOW)
    upper: NDArray[np.uint64] = high * factor_high + (first >> _HALF) + (second >> _HALF)
    return upper


@cache
def label(purpose: str) -> int:
    """Number of a purpose in a key; there are a few dozen purposes."""
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")


class _Key(ISeedSequence):
    """A key to be taken as it is.

    With `key`, NumPy would first gather unused entropy, which takes most of the time.
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[np.uint64]:  # noqa: ARG002 - NumPy's signature
        """The key's two words, which is what Philox asks for."""
        return self._words
