"""The noise of a mechanism: normal, of the declared size, and used once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fedcore.core import Aggregator, Cohort
from fedcore.privacy.base import DIRECTION, MESSAGE, Privacy, PrivateRun

LONG = 4_096
"""Length of changes whose noise is examined."""
DIM = 4
"""Length of changes of which only other released numbers are examined."""
OUTLIER = 1e-6
"""Probability below which a figure of noise is a finding. Seeds are fixed, so nothing comes and goes."""
Floats = NDArray[np.float64]


def noise_findings(privacy: Privacy, run: PrivateRun) -> list[str]:
    """Findings about the noise that an aggregator or clients add, to changes of zero [N, LONG] in every
    round: each coordinate is standard normal and independent of all others, once the noise that rounds
    share is taken out.
    """
    streams = _noise(privacy, run, 0)
    repeated = _noise(privacy, run, 1)
    count = _scalars(privacy, run)
    return [
        *(finding for name, noise in streams.items() for finding in examine(name, noise)),
        *(
            f"{name} has the same noise under another seed"
            for name in streams
            if _alike(streams[name], repeated[name])
        ),
        *(finding for name, noise in count.items() for finding in examine(name, noise)),
    ]


def _alike(noise: Floats, other: Floats) -> bool:
    return bool(np.abs(np.corrcoef(noise, other)[: len(noise), len(noise) :]).max() > 0.5)


def examine(name: str, noise: Floats) -> Iterator[str]:
    """Findings about rows [R, n] that are to be independent standard normal numbers."""
    rows, length = noise.shape
    for row in noise:
        if stats.kstest(row, "norm").pvalue < OUTLIER:
            yield f"the noise of {name} has {row.std():.3g} times the declared deviation, or is not normal"
            return
    bound = stats.norm.isf(OUTLIER / (rows * rows + 2)) / np.sqrt(length)
    across = np.abs(np.atleast_2d(np.corrcoef(noise)) - np.eye(rows))
    along = max(abs(float(np.corrcoef(row[:-lag], row[lag:])[0, 1])) for row in noise for lag in (1, 2))
    if across.max() > bound:
        yield f"noises of {name} are correlated ({across.max():.3f}): one is used more than once"
    if along > 2 * bound:
        yield f"the noise of {name} is correlated from coordinate to coordinate ({along:.3f})"


def _noise(privacy: Privacy, run: PrivateRun, seed: int) -> dict[str, Floats]:
    """[R, LONG] by name: rows of rounds, and of messages also of clients."""
    aggregator, randomiser = privacy.aggregator(Aggregator(), run), privacy.randomiser(run)
    cohort = cohort_of(np.arange(run.clients), run.clients)
    seen = torch.zeros(run.clients, LONG, dtype=torch.float64)
    state = aggregator.start(seen[0])
    found: dict[str, list[Floats]] = {}
    for round in range(1, run.rounds + 1):
        released = privacy.released(run, state)
        if MESSAGE in released:
            assert randomiser is not None
            sent = randomiser.privatise(seen, cohort.clients, seed, round)
            found.setdefault(MESSAGE, []).extend((sent / released[MESSAGE].deviation).numpy())
        if DIRECTION in released:
            combined = aggregator.of_round(seed, round).combine(seen, cohort, state)
            scaled = combined.direction / released[DIRECTION].deviation
            found.setdefault(DIRECTION, []).append(scaled.numpy())
            state = combined.aggregator_state
    if DIRECTION in found:
        factors = np.array(privacy.noise_of_rounds(run.rounds))
        root = np.linalg.cholesky(factors @ factors.T)
        found[DIRECTION] = list(np.linalg.solve(root, np.array(found[DIRECTION])))
    return {name: np.array(rows) for name, rows in found.items()}


def _scalars(privacy: Privacy, run: PrivateRun, seeds: int = 2_000) -> dict[str, Floats]:
    """[1 + DIM, seeds] of each released number of the aggregator's state, with the noise of a direction
    beside it, in the first round.
    """
    aggregator = privacy.aggregator(Aggregator(), run)
    seen = torch.zeros(run.clients, DIM, dtype=torch.float64)
    state, cohort = aggregator.start(seen[0]), cohort_of(np.arange(run.clients), run.clients)
    released = privacy.released(run, state)
    names = [name for name in released if name not in {DIRECTION, MESSAGE} and name in state]
    if not names:
        return {}
    combined = [aggregator.of_round(seed, 1).combine(seen, cohort, state) for seed in range(seeds)]
    beside = np.array([each.direction.numpy() for each in combined]).T / released[DIRECTION].deviation
    found = {}
    for name in names:
        values = torch.stack([each.aggregator_state[name].double().reshape(()) for each in combined])
        values = (values.log() if released[name].logarithm else values) / released[name].deviation
        # All changes are zero, so what is released beside the noise is one number: that of no noise.
        found[name] = np.vstack([(values - values.mean()).numpy(), beside])
    return found


def cohort_of(clients: NDArray[np.int64], population: int) -> Cohort:
    """A cohort of `clients` [M] that weigh alike."""
    ones = torch.ones(len(clients), dtype=torch.float64)
    each = ones / max(len(clients), 1)
    return Cohort(
        clients=torch.from_numpy(clients),
        weights=each,
        share=ones / population,
        objective=ones / population,
        population=population,
        steps=ones,
        normaliser=ones,
    )
