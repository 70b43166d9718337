"""Attacks on mechanisms by many runs, against the trade-off curve that the accountant gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedcore.core import Aggregate, Aggregator, LocalRandomiser
from fedcore.privacy.accounting import GaussianRelease, delta_of
from fedcore.privacy.base import DIRECTION, MESSAGE, Privacy, PrivateRun
from fedcore.systems.cohorts import draw
from fedcore.testing.privacy.noise import DIM, cohort_of

Floats = NDArray[np.float64]
LEVEL = 0.001 / (2 * 24)
"""Chance that the box of a correct mechanism lies below its curve, for each of its two sides: 0.1 % over
24 mechanisms.
"""
EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 20, 200)])


@dataclass(frozen=True)
class Mechanism:
    """A mechanism on N clients of which one, the last, is attacked; all others send zero.

    That one sends C along the first axis: to and fro, unless rounds share their noise. Each move is
    as large as its sensitivity, and what is the same in all rounds cancels.
    """

    privacy: Privacy
    run: PrivateRun

    def histories(self, first_seed: int, count: int, *, present: bool) -> Floats:
        """[count, F] what is released over all rounds, over its noise, by runs of consecutive seeds."""
        return np.array(
            [self.history(seed, present=present) for seed in range(first_seed, first_seed + count)]
        )

    @cached_property
    def _noise_is_shared(self) -> bool:
        return self.privacy.noise_of_rounds(2) != Privacy.noise_of_rounds(self.privacy, 2)

    @cached_property
    def _aggregator(self) -> Aggregator:
        return self.privacy.aggregator(Aggregator(), self.run)

    @cached_property
    def _randomiser(self) -> LocalRandomiser | None:
        return self.privacy.randomiser(self.run)

    def history(self, seed: int, *, present: bool) -> list[float]:
        """[F] of one run."""
        found: list[float] = []
        privacy, run = self.privacy, self.run
        aggregator = self._aggregator
        state = aggregator.start(torch.zeros(DIM, dtype=torch.float64))
        share, target = np.full(run.clients, 1 / run.clients), run.clients - 1
        neighbours = privacy.neighbours(run)
        for round in range(1, run.rounds + 1):
            clients = draw(run.participation, share, seed, round).clients
            if neighbours == "client added" and not present:
                clients = clients[clients != target]
            seen = torch.zeros(len(clients), DIM, dtype=torch.float64)
            changed = float(neighbours in {"client replaced", "data replaced"})
            norm = float(state.get("clip_norm", torch.tensor(privacy.clip_norm)))
            sign = 1.0 if round % 2 or self._noise_is_shared else -1.0
            seen[torch.from_numpy(clients == target), 0] = sign * norm * (1.0 if present else -changed)
            released = privacy.released(run, state)
            cohort = cohort_of(clients, run.clients)
            if self._randomiser is not None:
                seen = self._randomiser.privatise(seen, cohort.clients, seed, round)
            combined = aggregator.of_round(seed, round).combine(seen, cohort, state)
            for name, declared in released.items():
                found.append(_value(name, combined, seen, clients == target) / declared.deviation)
                if declared.logarithm:
                    before = float(state[name].log()) / declared.deviation
                    found[-1] = float(combined.aggregator_state[name].log()) / declared.deviation - before
            state = combined.aggregator_state
        return found


def _value(name: str, aggregate: Aggregate, messages: Tensor, target: NDArray[np.bool_]) -> float:
    """The first coordinate of what was released; zero of a message that was not sent."""
    if name == MESSAGE:
        sent = messages[torch.from_numpy(target)]
        return float(sent[0, 0]) if len(sent) else 0.0
    return float(aggregate.direction[0]) if name == DIRECTION else 0.0


class PresenceTest(NamedTuple):
    """A test for the presence of a client, which says that it is there where `statistic` exceeds
    `threshold`.
    """

    statistic: Callable[[Floats], Floats]
    threshold: float


class AttackErrors(NamedTuple):
    """Upper confidence limits of the errors of an attack, and the least of the second that the
    accountant allows.
    """

    false_positives: float
    false_negatives: float
    allowed: float

    @property
    def refuted(self) -> bool:
        """True if the attack does better than what is accounted for allows."""
        return self.false_negatives < self.allowed


def attack(
    histories: Callable[[int, int, bool], Floats], release: GaussianRelease, count: int, runs: tuple[int, int]
) -> AttackErrors:
    """Judge a mechanism whose `histories(first_seed, count, present)` [count, F] are known, of which
    `count` times `release` are accounted for.

    The first of `runs` runs in each world choose the attack, the others, which are fresh, judge it.
    """
    curve = TradeOff(release, count)
    chosen, judging = runs
    absent, present = (histories(0, chosen, there) for there in (False, True))
    found = best_attack(absent, present, release, curve, judging)
    absent, present = (histories(10**6, judging, there) for there in (False, True))
    positives = (found.statistic(absent) > found.threshold).sum()
    missed = (found.statistic(present) <= found.threshold).sum()
    errors = upper_limit(int(positives), judging), upper_limit(int(missed), judging)
    return AttackErrors(*errors, curve(errors[0]))


def best_attack(
    absent: Floats, present: Floats, release: GaussianRelease, curve: TradeOff, judging: int
) -> PresenceTest:
    """The statistic and threshold that refute most, by as many runs as are `judging`, given the histories
    [n, F] of both worlds.

    One statistic is linear, along the difference of means over the covariance; the other is the
    likelihood ratio of mixtures, with the q and the ratio that are accounted for.
    """
    difference = present.mean(0) - absent.mean(0)
    covariance = (np.cov(absent.T) + np.cov(present.T)).reshape(len(difference), -1) / 2
    ridge = 1e-9 * np.trace(covariance) * np.eye(len(difference))
    direction = np.linalg.solve(covariance + ridge, difference)
    q, mu = release.probability, 1 / release.ratio
    signs = np.sign(difference) + (difference == 0)

    def linear(history: Floats) -> Floats:
        return history @ direction

    def mixture(history: Floats) -> Floats:
        moved = mu * history * signs
        likely = np.log1p(q * np.expm1(np.minimum(moved - mu**2 / 2, 50)))
        if release.fixed_size:
            half = mu / 2  # the ratio is that of 2 C, and each world has one of its halves
            moved = half * history * signs
            likely = np.log1p(q * np.expm1(moved - half**2 / 2)) - np.log1p(
                q * np.expm1(-moved - half**2 / 2)
            )
        total: Floats = likely.sum(1)
        return total

    best, found = -np.inf, PresenceTest(linear, 0.0)
    for statistic in (linear, mixture):
        below, above = statistic(absent), statistic(present)
        for threshold in np.quantile(np.concatenate([below, above]), np.linspace(0.01, 0.99, 99)):
            positives = upper_limit(round(float((below > threshold).mean()) * judging), judging)
            missed = upper_limit(round(float((above <= threshold).mean()) * judging), judging)
            margin = curve(positives) - missed
            if margin > best:
                best, found = margin, PresenceTest(statistic, float(threshold))
    return found


def upper_limit(events: int, runs: int, level: float = LEVEL) -> float:
    """Upper confidence limit of a probability (Clopper and Pearson, 1934)."""
    return 1.0 if events == runs else float(stats.beta.ppf(1 - level, events + 1, runs - events))


class TradeOff:
    """The least false negatives of any test with given false positives: the trade-off curve of Dong,
    Roth and Su (Gaussian Differential Privacy, 2022), as the envelope of all (epsilon, delta).
    """

    def __init__(self, release: GaussianRelease, count: int) -> None:
        """Compute the curve of `count` releases."""
        self._deltas = np.array(delta_of(release, count, EPSILONS.tolist()))

    def __call__(self, false_positives: float) -> float:
        """The least false negatives."""
        rest = 1 - self._deltas
        bounds = (rest - np.exp(EPSILONS) * false_positives, np.exp(-EPSILONS) * (rest - false_positives))
        return max(0.0, *(float(each.max()) for each in bounds))
