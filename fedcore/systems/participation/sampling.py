"""Sampling schemes: who takes part does not depend on values of the training."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.block import ClientCount, Fraction
from fedcore.caching import CacheKey
from fedcore.errors import SpecificationError
from fedcore.lazy import np
from fedcore.systems.availability import (
    SKIP_COST,
    ClientId,
    Probabilities,
    Probability,
    Reachable,
    check_ids,
    check_probability,
    read_probabilities,
)
from fedcore.systems.participation.base import Participation, normalise_weights

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]


class Full(Participation):
    """Every client in every round; weights p_i."""

    everyone = True
    assures = Participation.assures

    kind: Literal["full"] = "full"

    @property
    def loses_cohorts(self) -> bool:
        return False

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        return np.arange(len(share)) if reachable is None else reachable.all()

    def chance_to_keep_any(self, share: Floats, clients: Ids, least: int) -> Floats | float:
        return 1.0


class Sampled(Participation):
    """K clients in each round, or a share of all."""

    clients_per_round: ClientCount | None = None
    """K, the clients drawn each round."""
    fraction: Fraction | None = None
    """K as a fraction of all clients, rounded, at least one; alternative to `clients_per_round`."""

    @property
    def loses_cohorts(self) -> bool:
        return False

    @model_validator(mode="after")
    def _one_count(self) -> Self:
        if (self.clients_per_round is None) == (self.fraction is None):
            raise ValueError("give either `clients_per_round` or `fraction`")
        return self

    def cohort_size(self, population: int) -> int:
        """K for a population of N clients."""
        if self.clients_per_round is not None:
            return self.clients_per_round
        assert self.fraction is not None
        return max(1, round(self.fraction * population))

    def sample(self, share: Floats, among: Ids | None, size: int, rng: Generator) -> Ids:
        """Draw `size` clients of `among`, or of all, in random order."""
        raise NotImplementedError

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        """`sample` among the clients that can be reached.

        Of clients drawn from all, in whatever order, the first that can be reached are a draw from
        all that can. Whether there are enough of them says nothing about who they are; if there
        are not, all who can be reached are drawn from anew.
        """
        size = self.cohort_size(len(share))
        if reachable is None:
            return self.sample(share, None, size, rng)
        tries = reachable.oversample_size(size)
        if tries is not None:
            found = _among(reachable, self.sample(share, None, tries, rng))
            if len(found) >= size:
                return found[:size]
        return self.sample(share, reachable.all(), size, rng)

    def chance_to_keep_any(self, share: Floats, clients: Ids, least: int) -> Floats | float:
        return 1.0

    def check(self, clients: int, rounds: int) -> None:
        size = self.cohort_size(clients)
        if size > clients:
            raise SpecificationError(
                "/participation/clients_per_round",
                f"{size} clients cannot be drawn from {clients} without replacement; use at most {clients}",
            )


class Uniform(Sampled):
    """Uniformly without replacement, weights n_i renormalised over the cohort (McMahan et al.;
    FedProx's experiments).
    """

    example = {"clients_per_round": 10}
    assures = Participation.assures

    kind: Literal["uniform"] = "uniform"

    def sample(self, share: Floats, among: Ids | None, size: int, rng: Generator) -> Ids:
        return draw_uniformly(len(share), among, size, rng)

    def expected_draws(self, share: Floats, clients: Ids) -> Floats:
        return np.full(len(clients), self.cohort_size(len(share)) / len(share))


class WithReplacement(Sampled):
    """S1 of Li et al.: K draws with replacement with probability p_i, each draw weighing 1/K."""

    own_weighting = "uniform"
    draws_by_share = True
    example = {"clients_per_round": 10}
    assures = Participation.assures

    kind: Literal["with_replacement"] = "with_replacement"

    def sample(self, share: Floats, among: Ids | None, size: int, rng: Generator) -> Ids:
        ends = _ends_of(CacheKey(share, id(share))) if among is None else _ends(share[among])
        drawn: Ids = ends.searchsorted(rng.random(size if len(ends) else 0), side="right")
        return drawn if among is None else among[drawn]

    def expected_draws(self, share: Floats, clients: Ids) -> Floats:
        expected: Floats = self.cohort_size(len(share)) * share[clients]
        return expected

    def chance_to_keep_any(self, share: Floats, clients: Ids, least: int) -> Floats | float:
        alone: Floats = share[clients] ** (self.cohort_size(len(share)) - 1)
        return 1 - alone

    def check(self, clients: int, rounds: int) -> None:
        """Any number of draws is possible."""

    @property
    def loses_cohorts(self) -> bool:
        return True


class ByShare(Sampled):
    """K different clients, one after another with probability p_i among those left, each weighing
    1/K (FedProx, Algorithm 2).
    """

    own_weighting = "uniform"
    draws_by_share = True
    example = {"clients_per_round": 10}
    assures = Participation.assures

    kind: Literal["by_share"] = "by_share"

    def sample(self, share: Floats, among: Ids | None, size: int, rng: Generator) -> Ids:
        return draw_by_share(share, among, size, rng)

    def unknown_probability(self) -> str | None:
        return (
            "the inclusion probabilities of by_share have no closed form; use `uniform`, or"
            " `with_replacement`, which is unbiased"
        )


class WithoutReplacement(Sampled):
    """S2 of Li et al.: K clients uniformly without replacement, x <- (N/K) sum_S p_i y_i.

    The weights sum to one only when all p_i are equal; otherwise the iterate itself is scaled, as
    printed. `weighting: unbiased` adds the weighted changes to x instead; `transformed` makes all
    p_i equal.
    """

    own_weighting = "unbiased"
    example = {"weighting": "unbiased", "fraction": 0.2}
    assures = Participation.assures

    kind: Literal["without_replacement"] = "without_replacement"
    transformed: bool = False
    """Scheme II for unbalanced p_i (Li et al., Section 3.3): client i trains on F~_i = p_i N F_i,
    and all have equal weight. The objective stays sum_i p_i F_i; a client's smoothness grows with
    p_i N, so step sizes must fall.
    """

    @property
    def scales_model(self) -> bool:
        return self.weighting is None

    @property
    def transforms_objective(self) -> bool:
        return self.transformed

    def sample(self, share: Floats, among: Ids | None, size: int, rng: Generator) -> Ids:
        return draw_uniformly(len(share), among, size, rng)

    def expected_draws(self, share: Floats, clients: Ids) -> Floats:
        return np.full(len(clients), self.cohort_size(len(share)) / len(share))


class Cyclic(Sampled):
    """The first K clients in round 1, the next K in round 2, and so on in the order of their ids, over
    and over: each takes part again as late as it can. Weights are n_i renormalised over the cohort.
    """

    example = {"clients_per_round": 10}
    assures = Participation.assures

    kind: Literal["cyclic"] = "cyclic"

    def block(self, population: int, round: int) -> Ids:
        """The clients of a round, counted from 1, out of N = `population`."""
        size = self.cohort_size(population)
        return ((round - 1) * size + np.arange(size)) % population

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        return _among(reachable, self.block(len(share), round))

    def unknown_probability(self) -> str | None:
        return "clients of cyclic are not drawn; use `samples` or `uniform`"


class Bernoulli(Participation):
    """Each client is selected independently with its probability, as in FedDyn's code.

    A cohort can have any size, including zero.
    """

    example = {"probability": 0.2}
    assures = Participation.assures

    kind: Literal["bernoulli"] = "bernoulli"
    probability: Probability
    """One probability for all clients, or one per client by client id."""

    @property
    def loses_cohorts(self) -> bool:
        return isinstance(self.probability, tuple)

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        if isinstance(self.probability, tuple):
            return _among(reachable, _by_chance(read_probabilities(self.probability), rng))
        # Draw the number of clients, then the clients: no draw for those that stay away.
        size = rng.binomial(len(share), self.probability)
        return _among(reachable, rng.choice(len(share), size, replace=False))

    def expected_draws(self, share: Floats, clients: Ids) -> Floats:
        return np.broadcast_to(read_probabilities(self.probability).each, len(share))[clients]

    def chance_to_keep_any(self, share: Floats, clients: Ids, least: int) -> Floats | float:
        if isinstance(self.probability, float):
            from scipy.special import bdtrc

            return float(bdtrc(least - 2, len(share) - 1, self.probability))
        return chance_of_others(read_probabilities(self.probability).each)[clients]

    def check(self, clients: int, rounds: int) -> None:
        check_probability(self.probability, "/participation", clients)


class Trace(Participation):
    """Given cohorts for every round; a client listed twice counts as drawn twice."""

    example = {"rounds": [[0, 1], [1, 1]]}
    assures = Participation.assures

    kind: Literal["trace"] = "trace"
    rounds: Annotated[
        tuple[Annotated[tuple[ClientId, ...], Field(fail_fast=True)], ...],
        Field(fail_fast=True, min_length=1, max_length=100_000),
    ]
    """A list of client ids per round."""

    def draw(self, share: Floats, reachable: Reachable | None, rng: Generator, round: int) -> Ids:
        return _among(reachable, np.array(self.rounds[round - 1], np.int64))

    def unknown_probability(self) -> str | None:
        return "a trace has no sampling probabilities; use `samples` or `uniform`"

    def listed(self, rounds: int) -> list[set[int]] | None:
        return list(map(set, self.rounds[:rounds]))

    def check(self, clients: int, rounds: int) -> None:
        if len(self.rounds) < rounds:
            raise SpecificationError(
                "/participation/rounds",
                f"must have a row for each of the {rounds} rounds, not {len(self.rounds)}",
            )
        check_ids(self.rounds, clients, "/participation/rounds")


def _among(reachable: Reachable | None, clients: Ids) -> Ids:
    return clients if reachable is None else clients[reachable.has(clients)]


def chance_of_others(chances: Floats) -> Floats:
    """[N] 1 - prod_{j != i} (1 - q_j): the chance that someone other than i is drawn, of clients that
    are drawn independently with `chances` q [N].
    """
    absent = 1 - chances
    certain = absent == 0
    nobody_else = np.prod(absent[~certain]) / np.where(certain, 1.0, absent)
    return 1 - np.where(certain.sum() > certain, 0.0, nobody_else)


def _by_chance(chances: Probabilities, rng: Generator) -> Ids:
    """Each by a chance of its own."""
    population = len(chances.each)
    if chances.most * SKIP_COST > 1:
        return np.flatnonzero(rng.random(population) < chances.each)
    # Some as if all had the largest chance, and of those each by what its own is of that.
    some = rng.choice(population, rng.binomial(population, chances.most), replace=False)
    return some[rng.random(len(some)) * chances.most < chances.each[some]]


def draw_uniformly(population: int, among: Ids | None, size: int, rng: Generator) -> Ids:
    """Draw `size` without replacement, in random order; fewer if there are fewer."""
    return rng.choice(
        population if among is None else among,
        min(size, population if among is None else len(among)),
        replace=False,
    )


def draw_by_share(share: Floats, among: Ids | None, size: int, rng: Generator) -> Ids:
    """Draw `size` different clients, one after another with probability p_i among those left; fewer if
    there are fewer with a share.
    """
    clients = np.flatnonzero(share) if among is None else among[share[among] > 0]
    if not len(clients):
        return clients
    return rng.choice(clients, min(size, len(clients)), replace=False, p=normalise_weights(share[clients]))


# The shares of a problem are the same in all its rounds.
@lru_cache(maxsize=4)
def _ends_of(shares: CacheKey[Floats]) -> Floats:
    return _ends(shares.value)


def _ends(shares: Floats) -> Floats:
    """[N] where each client's stretch of the unit interval ends, as NumPy's `choice` has it.

    None if no client has a share.
    """
    ends: Floats = np.cumsum(shares / shares.sum()) if shares.any() else np.zeros(0)
    return ends / ends[-1:]
