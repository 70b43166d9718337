"""Mini-batches of a client's round: the samples of each local step.

Permutations for many clients are computed in machine code, with the bits of NumPy's
`Generator.permuted`: creating and calling a NumPy generator for each client takes longer than the
training of a small client.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedcore.machine_code import compiled
from fedcore.random import generator, label
from fedcore.systems.work import Work, steps_of

Ids = NDArray[np.int64]
PADDING = -1
BATCHES = "batches"
"""Purpose of randomness."""
_FEW, _EACH = 8_192, 400
"""Up to this many samples are shuffled by NumPy; machine code is several times as fast, but takes a
second to compile. For NumPy, each client costs as much as `_EACH` samples.
"""


def mini_batches(seed: int, round: int, client: int, samples: int, work: Work) -> Ids:
    """The client's batches [steps, B] of local sample indices.

    -1 pads the short last batch of an epoch.

    Every epoch passes over a fresh permutation. When B covers all samples the order is immaterial
    and the rows are one row seen `steps` times, at no cost.
    """
    if work.batch_size >= samples:
        return np.broadcast_to(np.arange(samples), (work.steps, samples))
    draw = generator(seed, BATCHES, round, client)
    if work.lengths is not None:
        passes = -(-sum(work.lengths) // samples), samples
        return _in_rows(draw.permuted(np.broadcast_to(np.arange(samples), passes), axis=1), work.lengths)
    epochs, length = _extent(samples, work)
    rows = np.full((epochs, length), PADDING, np.int64)
    rows[:, :samples] = draw.permuted(np.broadcast_to(np.arange(samples), (epochs, samples)), axis=1)
    return rows.reshape(-1, work.batch_size)[: work.steps]


def _in_rows(samples: Ids, lengths: Sequence[int]) -> Ids:
    """The first of `samples` in rows of these lengths, padded to the longest."""
    counts = np.array(lengths)[:, None]
    rows = np.full((len(counts), counts.max()), PADDING)
    rows[np.arange(rows.shape[1]) < counts] = samples.ravel()[: counts.sum()]
    return rows


def cohort_batches(
    seed: int, round: int, clients: Ids, samples: Ids, work: Sequence[Work]
) -> tuple[Ids, ...]:
    """`mini_batches` of each of the `clients` [M], who hold `samples` [M] and have `work` [M].

    Where they are many, in one go.
    """
    counts = samples.tolist()
    extents = np.array(
        [
            (0, 0) if item.batch_size >= count or item.lengths else _extent(count, item)
            for count, item in zip(counts, work, strict=True)
        ]
    )
    numbers = extents.prod(1)
    if numbers.sum() + _EACH * np.count_nonzero(numbers) <= _FEW:
        members = zip(clients.tolist(), counts, work, strict=True)
        return tuple(mini_batches(seed, round, client, count, item) for client, count, item in members)
    flat, ends = np.full(numbers.sum(), PADDING), np.cumsum(numbers)
    epochs, lengths = np.ascontiguousarray(extents.T)
    counters = np.stack([clients, np.full(len(clients), round)], 1).astype(np.uint64)
    key = np.array([seed, label(BATCHES)], np.uint64)
    shuffle_samples(flat, ends - numbers, epochs, lengths, samples, counters, key)
    return tuple(
        flat[end - number : end].reshape(-1, item.batch_size)[: item.steps]
        if number
        else mini_batches(seed, round, client, count, item)
        for end, number, client, count, item in zip(
            ends.tolist(), numbers.tolist(), clients.tolist(), counts, work, strict=True
        )
    )


def compile_shuffling() -> None:
    """Have the machine code ready that shuffles the samples of large cohorts."""
    sizes = np.full(30, 300)
    cohort_batches(0, 1, np.arange(len(sizes)), sizes, [Work(30, 10)] * len(sizes))


def augment_indices(batches: Ids, samples: int, views: int, seed: int, round: int, client: int) -> Ids:
    """The batches with each sample i in a random one of `views` views v, drawn for every step:
    i + v `samples`; -1 stays padding.
    """
    if views == 1:
        return batches
    drawn = generator(seed, "views", round, client).integers(views, size=batches.shape)
    return np.where(batches == PADDING, PADDING, batches + samples * drawn)


def augmented_batches(
    seed: int, round: int, clients: Ids, samples: Ids, work: Sequence[Work], views: int
) -> tuple[Ids, ...]:
    """`cohort_batches` of data whose samples have `views` views each, of which random ones are drawn."""
    batches = cohort_batches(seed, round, clients, samples, work)
    if views == 1:
        return batches
    members = zip(batches, samples.tolist(), clients.tolist(), strict=True)
    return tuple(
        augment_indices(batch, count, views, seed, round, client) for batch, count, client in members
    )


def gradient_noise(
    seed: int, round: int, client: int, steps: int, dim: int, deviation: float
) -> NDArray[np.float64]:
    """Gaussian noise [steps, D] for the client's gradients."""
    return generator(seed, "gradient noise", round, client).normal(0.0, deviation, (steps, dim))


def _extent(samples: int, work: Work) -> tuple[int, int]:
    """Epochs begun, and the length of each with its padding."""
    per_epoch = steps_of(1, samples, work.batch_size)
    return -(-work.steps // per_epoch), per_epoch * work.batch_size


Words = NDArray[np.uint64]

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


@compiled(nogil=True)
def shuffle_samples(
    flat: Ids, starts: Ids, epochs: Ids, lengths: Ids, sizes: Ids, counters: Words, key: Words
) -> None:
    """Write the permutations of M clients, in place; what lies between them stays.

    Client i has `epochs`[i] rows of `lengths`[i] numbers each from flat[starts[i]] on. Every row
    begins with a permutation of 0 ... sizes[i] - 1, drawn from the stream of `key` [2] that begins
    at counter (0, 0, *counters[i]).
    """
    drawn = np.empty(_WORDS, np.uint64)
    for i in range(len(starts)):
        block, used = np.uint64(0), 2 * _WORDS
        for epoch in range(epochs[i]):
            first = starts[i] + epoch * lengths[i]
            row = flat[first : first + sizes[i]]
            block, used = _permute(row, drawn, used, block, counters[i], key)


@compiled(nogil=True)
def _permute(row: Ids, drawn: Words, used: Any, block: Any, counter: Words, key: Words) -> tuple[Any, Any]:
    """Fisher and Yates, as NumPy does it: 32 bits at a time, masked, and drawn again where they are
    too large.

    There is no branch on what is drawn, since no processor could foretell it: too large a number
    swaps a sample with itself.
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


@compiled(nogil=True)
def _draw(drawn: Words, block: Any, counter: Words, key: Words) -> None:
    """Philox4x64-10 from a block on, two blocks at a time so that one's products are under way
    while the other's are awaited.
    """
    for word in range(0, len(drawn), 8):
        first = block + np.uint64(word // 4 + 1)
        a0, a1, a2, a3 = first, np.uint64(0), counter[0], counter[1]
        b0, b1, b2, b3 = first + np.uint64(1), np.uint64(0), counter[0], counter[1]
        k0, k1 = key
        for _ in range(_ROUNDS):
            a0, a1, a2, a3 = (
                _high(_FACTORS[1], a2) ^ a1 ^ k0,
                _FACTORS[1] * a2,
                _high(_FACTORS[0], a0) ^ a3 ^ k1,
                _FACTORS[0] * a0,
            )
            b0, b1, b2, b3 = (
                _high(_FACTORS[1], b2) ^ b1 ^ k0,
                _FACTORS[1] * b2,
                _high(_FACTORS[0], b0) ^ b3 ^ k1,
                _FACTORS[0] * b0,
            )
            k0, k1 = k0 + _BUMPS[0], k1 + _BUMPS[1]
        drawn[word], drawn[word + 1], drawn[word + 2], drawn[word + 3] = a0, a1, a2, a3
        drawn[word + 4], drawn[word + 5], drawn[word + 6], drawn[word + 7] = b0, b1, b2, b3
