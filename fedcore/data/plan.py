"""The plan of a client's round: which samples each local step sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.data.random import generator, label

Ids = NDArray[np.int64]
PADDING = -1
BATCHES = "batches"
"""Purpose of randomness."""
_FEW, _EACH = 8_192, 400
"""So many samples are shuffled by NumPy; machine code is several times as fast, but takes a second to make. For NumPy a client
counts like so many more samples."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much a client does in a round."""

    steps: int
    batch_size: int


def steps_of(epochs: int, samples: int, batch_size: int) -> int:
    """epochs * ceil(n / B): the short last batch of an epoch is a step."""
    return epochs * -(-samples // batch_size)


def mini_batches(seed: int, round: int, client: int, samples: int, work: Work) -> Ids:
    """The client's batches [steps, B] of local sample indices; -1 pads the short last batch of an epoch.

    Every epoch passes over a fresh permutation. When B covers all samples the order is immaterial and the rows are one
    row seen `steps` times, at no cost.
    """
    if work.batch_size >= samples:
        return np.broadcast_to(np.arange(samples), (work.steps, samples))
    epochs, length = _extent(samples, work)
    rows = np.full((epochs, length), PADDING, np.int64)
    draw = generator(seed, BATCHES, round, client)
    rows[:, :samples] = draw.permuted(np.broadcast_to(np.arange(samples), (epochs, samples)), axis=1)
    return rows.reshape(-1, work.batch_size)[: work.steps]


def cohort_batches(seed: int, round: int, clients: Ids, samples: Ids, work: Sequence[Work]) -> tuple[Ids, ...]:
    """`mini_batches` of each of the `clients` [M], who hold `samples` [M] and have `work` [M]; where they are many, in one go."""
    counts = samples.tolist()
    extents = np.array([(0, 0) if item.batch_size >= count else _extent(count, item) for count, item in zip(counts, work, strict=True)])
    numbers = extents.prod(1)
    if numbers.sum() + _EACH * np.count_nonzero(numbers) <= _FEW:
        members = zip(clients.tolist(), counts, work, strict=True)
        return tuple(mini_batches(seed, round, client, count, item) for client, count, item in members)
    flat, ends = np.full(numbers.sum(), PADDING), np.cumsum(numbers)
    _shuffle(flat, ends - numbers, extents, samples, _counters(clients, round), np.array([seed, label(BATCHES)], np.uint64))
    return tuple(
        flat[end - number : end].reshape(-1, item.batch_size)[: item.steps] if number else mini_batches(seed, round, 0, count, item)
        for end, number, count, item in zip(ends.tolist(), numbers.tolist(), counts, work, strict=True)
    )


def viewed(batches: Ids, samples: int, views: int, seed: int, round: int, client: int) -> Ids:
    """The batches, each sample i in one of so many `views` v, drawn for every step anew: i + v `samples`; -1 stays padding."""
    if views == 1:
        return batches
    drawn = generator(seed, "views", round, client).integers(views, size=batches.shape)
    return np.where(batches == PADDING, PADDING, batches + samples * drawn)


def gradient_noise(seed: int, round: int, client: int, steps: int, dim: int, deviation: float) -> NDArray[np.float64]:
    """Gaussian noise [steps, D] for the client's gradients."""
    return generator(seed, "gradient noise", round, client).normal(0.0, deviation, (steps, dim))


def _extent(samples: int, work: Work) -> tuple[int, int]:
    """Epochs begun, and the length of each with its padding."""
    per_epoch = steps_of(1, samples, work.batch_size)
    return -(-work.steps // per_epoch), per_epoch * work.batch_size


def _counters(clients: Ids, round: int) -> NDArray[np.uint64]:
    """[M, 2] what `generator` counts a client's stream from."""
    return np.stack([clients, np.full(len(clients), round)], 1).astype(np.uint64)


def _shuffle(flat: Ids, starts: Ids, extents: Ids, samples: Ids, counters: NDArray[np.uint64], key: NDArray[np.uint64]) -> None:
    # Here, because the compiler takes half a second to load.
    from fedcore.data.shuffles import shuffle

    epochs, lengths = np.ascontiguousarray(extents.T)
    shuffle(flat, starts, epochs, lengths, samples, counters, key)
