"""Local differential privacy: each client adds noise to its change before it sends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedcore.assurance import Assurance
from fedcore.core import Aggregator, LocalRandomiser
from fedcore.lazy import torch
from fedcore.privacy.accounting import GaussianRelease
from fedcore.privacy.base import Privacy, PrivateRun
from fedcore.privacy.client_level import clip, standard_normal

if TYPE_CHECKING:
    from torch import Tensor

NOISE = "local privacy noise"
"""Purpose of randomness."""


@dataclass(frozen=True)
class NoisyChanges(LocalRandomiser):
    """Changes that are clipped and noisy, each by itself."""

    clip_norm: float
    noise_multiplier: float

    def privatise(self, changes: Tensor, clients: Tensor, seed: int, round: int) -> Tensor:
        clipped = clip(changes, self.clip_norm)
        drawn = [standard_normal(changes[0], seed, NOISE, round, client) for client in clients.tolist()]
        noise = self.noise_multiplier * self.clip_norm * torch.stack(drawn)
        return clipped.factors[:, None] * clipped.deltas + noise


class LocalPrivacy(Privacy):
    """Each client clips its change to length C and adds noise; the server need not be trusted.

        Delta_i <- Delta_i min(1, C / |Delta_i|) + N(0, z^2 C^2 I)

    What follows may do anything with the noisy changes: compression of the uplink with its error
    feedback, any `aggregator` and server optimiser, and selection by the norms of changes. Clients
    remember what they have sent, with its noise. Neighbours are any two data sets of one client of the
    same size, so the sensitivity is 2 C; the number of samples is known to the server, as weights need
    it. That a client was not drawn hides nothing from a server that draws it: epsilon holds for a
    client that takes part in every round, or, of a `trace`, in the rounds in which it is listed.
    """

    source = (
        "Duchi, Jordan and Wainwright, Local Privacy and Statistical Minimax Rates, FOCS 2013;"
        " the Gaussian mechanism: Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014"
    )
    example = {"noise_multiplier": 0.1, "clip_norm": 0.5}
    replaces_aggregator = False
    requires = frozenset({Assurance.CHANGE_ALONE, Assurance.OWN_DATA})

    kind: Literal["local"] = "local"

    def releases(self, noise: float, run: PrivateRun, rounds: int) -> tuple[GaussianRelease, int]:
        return GaussianRelease(noise / 2), most_participations(run, rounds)

    def aggregator(self, within: Aggregator, run: PrivateRun) -> Aggregator:
        return within

    def randomiser(self, run: PrivateRun) -> NoisyChanges:
        return NoisyChanges(self.clip_norm, self.noise(run))


def most_participations(run: PrivateRun, rounds: int) -> int:
    """Maximum number of the first `rounds` rounds in which a client takes part."""
    listed = run.participation.listed(rounds)
    if listed is None:
        return rounds
    return max((sum(client in row for row in listed) for client in set().union(*listed)), default=0)
