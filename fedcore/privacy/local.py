"""Local differential privacy: each client adds noise to its change before it sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedcore.core import Aggregate, Aggregator, Cohort, CohortNeed, Vectors
from fedcore.lazy import torch
from fedcore.privacy.accounting import GaussianRelease
from fedcore.privacy.base import CHANGES, Privacy, PrivateRun
from fedcore.privacy.client_level import clip, standard_normal

if TYPE_CHECKING:
    from torch import Tensor

NOISE = "local privacy noise"
"""Purpose of randomness."""


@dataclass(frozen=True)
class NoisyChanges(Aggregator):
    """Another aggregator of changes that are clipped and noisy, each by itself."""

    within: Aggregator
    clip_norm: float
    noise_multiplier: float
    seed: int = 0
    round: int = 0

    def of_round(self, seed: int, round: int) -> NoisyChanges:
        return replace(self, within=self.within.of_round(seed, round), seed=seed, round=round)

    def for_model(self, coordinates: Mapping[str, Tensor]) -> NoisyChanges:
        return replace(self, within=self.within.for_model(coordinates))

    def weighted_sums(self, cohort: Cohort) -> None:
        return None

    def start(self, x: Tensor) -> Vectors:
        return self.within.start(x)

    def vectors_kept(self) -> tuple[int, int]:
        return self.within.vectors_kept()

    def needs(self) -> frozenset[CohortNeed]:
        return self.within.needs()

    def combine(self, seen: Tensor, cohort: Cohort, aggregator_state: Vectors) -> Aggregate:
        clipped = clip(seen, self.clip_norm)
        drawn = [
            standard_normal(seen[0], self.seed, NOISE, self.round, client)
            for client in cohort.clients.tolist()
        ]
        noise = self.noise_multiplier * self.clip_norm * torch.stack(drawn)
        sent = clipped.factors[:, None] * clipped.deltas + noise
        sums = self.within.weighted_sums(cohort)
        return self.within.combine(sent if sums is None else sums @ sent, cohort, aggregator_state)


class LocalPrivacy(Privacy):
    """Each client clips its change to length C and adds noise; the server need not be trusted.

        Delta_i <- Delta_i min(1, C / |Delta_i|) + N(0, z^2 C^2 I)

    The server may do anything with what it receives: any `aggregator` and server optimiser may
    follow. Neighbours are any two data sets of one client of the same size, so the sensitivity is
    2 C; the number of samples is known to the server, as weights need it. That a client was not
    drawn hides nothing from a server that draws it: epsilon holds for a client that takes part in
    every round, or, of a `trace`, in the rounds in which it is listed.
    """

    source = (
        "Duchi, Jordan and Wainwright, Local Privacy and Statistical Minimax Rates, FOCS 2013;"
        " the Gaussian mechanism: Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014"
    )
    example = {"noise_multiplier": 0.1, "clip_norm": 0.5}
    replaces_aggregator = False
    requires = CHANGES

    kind: Literal["local"] = "local"

    def releases(self, noise: float, run: PrivateRun, rounds: int) -> tuple[GaussianRelease, int]:
        return GaussianRelease(noise / 2), most_participations(run, rounds)

    def aggregator(self, within: Aggregator, run: PrivateRun) -> Aggregator:
        return NoisyChanges(within, self.clip_norm, self.noise(run))


def most_participations(run: PrivateRun, rounds: int) -> int:
    """Maximum number of the first `rounds` rounds in which a client takes part."""
    listed = run.participation.listed(rounds)
    if listed is None:
        return rounds
    return max((sum(client in row for row in listed) for client in set().union(*listed)), default=0)
