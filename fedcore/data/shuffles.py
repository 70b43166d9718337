"""Permutations of many clients' samples in machine code: bit for bit those of NumPy's `Generator.permuted`.

Making NumPy a generator for each client, and calling it, takes longer than the training of a small client.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]

_OPTIONS: dict[str, Any] = {"nogil": True}
_FACTORS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_BUMPS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_ROUNDS = 10
_WORDS = 32
"""Drawn at a time: even a client of a few samples uses most of them."""


def _product(_typing: Any, _a: Any, _b: Any) -> Any:
    """The upper 64 bits of a product of two numbers of 64."""

    def generate(_context: Any, builder: Any, _signature: Any, operands: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(operand, wide) for operand in operands))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_high: Any = intrinsic(_product)


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def shuffle(flat: Ids, starts: Ids, epochs: Ids, lengths: Ids, sizes: Ids, counters: Words, key: Words) -> None:
    """Write the permutations of M clients, in place; what lies between them stays.

    Client i has `epochs`[i] rows of `lengths`[i] numbers each from flat[starts[i]] on. Every row begins with a permutation of
    0 ... sizes[i] - 1, drawn from the stream of `key` [2] that begins at counter (0, 0, *counters[i]).
    """
    drawn = np.empty(_WORDS, np.uint64)
    for i in range(len(starts)):
        block, used = np.uint64(0), 2 * _WORDS
        for epoch in range(epochs[i]):
            first = starts[i] + epoch * lengths[i]
            row = flat[first : first + sizes[i]]
            block, used = _permute(row, drawn, used, block, counters[i], key)


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _permute(row: Ids, drawn: Words, used: Any, block: Any, counter: Words, key: Words) -> tuple[Any, Any]:
    """Fisher and Yates, as NumPy does it: 32 bits at a time, masked, and drawn again where they are too large.

    There is no branch on what is drawn, since no processor could foretell it: too large a number swaps a sample with itself.
    """
    halves: Any = drawn.view(np.uint32)
    for i in range(len(row)):
        row[i] = i
    last: Any = len(row) - 1
    mask = 1
    while mask < last:
        mask = 2 * mask + 1
    while last > 0:
        while last > mask >> 1:
            if used == len(halves):
                _draw(drawn, block, counter, key)
                block, used = block + np.uint64(len(drawn) // 4), 0
            other: Any = np.int64(halves[used]) & mask
            used += 1
            fits = other <= last
            other = other if fits else last
            row[last], row[other] = row[other], row[last]
            last -= fits
        mask >>= 1
    return block, used


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]
def _draw(drawn: Words, block: Any, counter: Words, key: Words) -> None:
    """Philox4x64-10 from a block on, two blocks at a time so that one's products are under way while the other's are awaited."""
    for word in range(0, len(drawn), 8):
        first = block + np.uint64(word // 4 + 1)
        a0, a1, a2, a3 = first, np.uint64(0), counter[0], counter[1]
        b0, b1, b2, b3 = first + np.uint64(1), np.uint64(0), counter[0], counter[1]
        k0, k1 = key
        for _ in range(_ROUNDS):
            a0, a1, a2, a3 = _high(_FACTORS[1], a2) ^ a1 ^ k0, _FACTORS[1] * a2, _high(_FACTORS[0], a0) ^ a3 ^ k1, _FACTORS[0] * a0
            b0, b1, b2, b3 = _high(_FACTORS[1], b2) ^ b1 ^ k0, _FACTORS[1] * b2, _high(_FACTORS[0], b0) ^ b3 ^ k1, _FACTORS[0] * b0
            k0, k1 = k0 + _BUMPS[0], k1 + _BUMPS[1]
        drawn[word], drawn[word + 1], drawn[word + 2], drawn[word + 3] = a0, a1, a2, a3
        drawn[word + 4], drawn[word + 5], drawn[word + 6], drawn[word + 7] = b0, b1, b2, b3
