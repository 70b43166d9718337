"""The plan of a client's round: which samples each local step sees."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.data.random import generator

PADDING = -1


@dataclass(frozen=True, slots=True)
class Work:
    """How much a client does in a round."""

    steps: int
    batch_size: int


def steps_of(epochs: int, samples: int, batch_size: int) -> int:
    """epochs * ceil(n / B): the short last batch of an epoch is a step."""
    return epochs * -(-samples // batch_size)


def mini_batches(seed: int, round: int, client: int, samples: int, work: Work) -> NDArray[np.int64]:
    """The client's batches [steps, B] of local sample indices; -1 pads the short last batch of an epoch.

    Every epoch passes over a fresh permutation. When B covers all samples the order is immaterial and the rows are one
    row seen `steps` times, at no cost.
    """
    if work.batch_size >= samples:
        return np.broadcast_to(np.arange(samples), (work.steps, samples))
    per_epoch = steps_of(1, samples, work.batch_size)
    epochs = -(-work.steps // per_epoch)
    rows = np.full((epochs, per_epoch * work.batch_size), PADDING, np.int64)
    draw = generator(seed, "batches", round, client)
    rows[:, :samples] = draw.permuted(np.broadcast_to(np.arange(samples), (epochs, samples)), axis=1)
    return rows.reshape(-1, work.batch_size)[: work.steps]


def viewed(batches: NDArray[np.int64], samples: int, views: int, seed: int, round: int, client: int) -> NDArray[np.int64]:
    """The batches, each sample i in one of so many `views` v, drawn for every step anew: i + v `samples`; -1 stays padding."""
    if views == 1:
        return batches
    drawn = generator(seed, "views", round, client).integers(views, size=batches.shape)
    return np.where(batches == PADDING, PADDING, batches + samples * drawn)


def gradient_noise(seed: int, round: int, client: int, steps: int, dim: int, deviation: float) -> NDArray[np.float64]:
    """Gaussian noise [steps, D] for the client's gradients."""
    return generator(seed, "gradient noise", round, client).normal(0.0, deviation, (steps, dim))
