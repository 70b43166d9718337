"""Randomness by key, never by call order: (seed, purpose, round, client) name one stream, whoever draws from it and when."""

from hashlib import blake2b

import numpy as np


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The generator of one stream: Philox (Salmon et al., 2011) with key (seed, purpose) and counter (., ., client, round).

    The low two words of the counter are the position in the stream, so streams of 2^128 blocks never meet.
    """
    label = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    bits = np.random.Philox(key=np.array([seed, label], np.uint64), counter=np.array([0, 0, client, round], np.uint64))
    return np.random.Generator(bits)
