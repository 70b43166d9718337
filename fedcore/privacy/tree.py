"""DP-FTRL: client-level differential privacy by correlated noise, without a claim on sampling."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Literal

from fedcore.assurance import Assurance
from fedcore.core import Aggregator, Vectors
from fedcore.errors import SpecificationError
from fedcore.lazy import np
from fedcore.privacy.accounting import GaussianRelease
from fedcore.privacy.base import CHANGES, DIRECTION, Neighbours, Privacy, PrivateRun, Release
from fedcore.privacy.client_level import PrivateMean, standard_normal
from fedcore.systems.participation import Cyclic, Full

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NODE_NOISE = "tree noise"
"""Purpose of randomness: of node `round` of level `client`."""


class TreeMean(PrivateMean):
    """A `PrivateMean` whose noises add up to the noises of the nodes of a binary tree over the
    rounds.
    """

    def noise(self, like: Tensor) -> Tensor:
        """The noise of rounds 1 to t less that of rounds 1 to t - 1, for C = 1."""
        level = (self.round & -self.round).bit_length() - 1
        noise = self._node(like, level, self.round >> level)
        for below in range(level):
            noise = noise - self._node(like, below, (self.round - 1) >> below)
        return self.noise_multiplier * noise

    def _node(self, like: Tensor, level: int, number: int) -> Tensor:
        """Noise of the node over rounds (number - 1) 2^level + 1 to number 2^level."""
        return standard_normal(like, self.seed, NODE_NOISE, number, level)


class TreePrivacy(Privacy):
    """DP-FTRL: as `client_level`, but the noise of the sum of all rounds so far is that of the nodes of
    a binary tree over the rounds, of which few make up any number of rounds.

        S_t = sum_(s <= t) sum_i Delta_i min(1, C / |Delta_i|) + sum_(nodes of t) N(0, z^2 C^2 I)
        x <- x + (S_t - S_(t-1)) / m

    The nodes of t are the powers of two that t is the sum of: noise grows with the logarithm of t
    instead of t. m is the number of clients of the first round. The rounds in which each client
    takes part must be known (`cyclic`, `trace`, `full`); which they are is not a secret, and
    nothing is claimed for sampling. A client that is in c rounds of a node moves it by up to c C, so
    that together

        sensitivity = C max_i (sum_nodes c_i(node)^2)^(1/2)

    over the nodes that are complete. Neighbours differ in one client, whose changes count or are zero.
    One tree serves all rounds, where the paper begins a new one after each pass over the clients; its
    variance reduction (Honaker, 2015) and momentum are left out. For the sum under the root, the
    authors' code takes the passes over the data times the levels of the tree. The matrix mechanism
    behind the formula: Denisov et al., Improved Differential Privacy for SGD via Optimal Private
    Linear Operators on Adaptive Streams, NeurIPS 2022.
    """

    source = (
        "Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling, ICML 2021"
        " (DP-FTRL with tree aggregation)"
    )
    example = {"noise_multiplier": 0.5, "clip_norm": 0.5}
    requires = CHANGES | {Assurance.ALL_ARRIVE}  # who is in a cohort does not differ between neighbours

    kind: Literal["dp_ftrl"] = "dp_ftrl"

    def check(self, run: PrivateRun) -> None:
        scheme = run.participation
        if type(scheme) not in (Full, Cyclic) and scheme.listed(run.rounds) is None:
            raise SpecificationError(
                "/participation",
                f"the rounds of each client must be known; {scheme.kind} draws them: use `cyclic`, `trace`"
                " or `full`, or `privacy: client_level`",
            )

    def releases(self, noise: float, run: PrivateRun, rounds: int) -> tuple[GaussianRelease, int]:
        square = squared_sensitivity(run, rounds)
        return GaussianRelease(noise / sqrt(square or 1)), min(square, 1)

    def aggregator(self, within: Aggregator, run: PrivateRun) -> Aggregator:
        return TreeMean(self.clip_norm, self.noise(run), first_cohort(run))

    def neighbours(self, run: PrivateRun) -> Neighbours:
        return "client zeroed"

    def released(self, run: PrivateRun, state: Vectors) -> dict[str, Release]:
        norm = self.clip_norm / first_cohort(run)
        return {DIRECTION: Release(norm, self.noise(run) * norm)}

    def noise_of_rounds(self, rounds: int) -> list[list[float]]:
        # Of rounds 1 to t: a node for each power of two in t, known by the rounds that it ends with and has.
        totals = np.zeros((rounds + 1, rounds + 1))
        for round in range(1, rounds + 1):
            end = round
            while end:
                # No two nodes in use end with the same round: their numbers are odd.
                totals[round, end] = 1
                end -= end & -end
        rows: list[list[float]] = np.diff(totals, axis=0)[:, 1:].tolist()
        return rows


def first_cohort(run: PrivateRun) -> float:
    """m, the number of clients of the first round, one at least."""
    listed = run.participation.listed(1)
    if listed is not None:
        return float(max(1, len(listed[0])))
    return run.expected_clients


@lru_cache(maxsize=4096)
def squared_sensitivity(run: PrivateRun, rounds: int) -> int:
    """max_i sum_nodes c_i(node)^2 over the nodes that rounds 1 to `rounds` complete.

    Only nodes of odd number are ever used, since every round is a sum of different powers of two.
    """
    until = np.cumsum(_participations(run), axis=1)
    square = np.zeros(len(until), np.int64)
    for level in range(rounds.bit_length()):
        ends = np.arange(1, (rounds >> level) + 1, 2) << level
        square += np.square(until[:, ends] - until[:, ends - (1 << level)]).sum(axis=1)
    return int(square.max())


@lru_cache(maxsize=8)
def _participations(run: PrivateRun) -> NDArray[np.int64]:
    """[N, 1 + T] 1 where a client takes part in a round; round 0 has none. Where all clients have the
    same rounds, one row.
    """
    scheme = run.participation
    if isinstance(scheme, Full):
        found = np.ones((1, 1 + run.rounds), np.int64)
        found[:, 0] = 0
        return found
    listed = scheme.listed(run.rounds)
    if isinstance(scheme, Cyclic):
        listed = [set(scheme.block(run.clients, round).tolist()) for round in range(1, run.rounds + 1)]
    assert listed is not None
    found = np.zeros((run.clients, 1 + run.rounds), np.int64)
    for round, clients in enumerate(listed, 1):
        found[list(clients), round] = 1
    return found
