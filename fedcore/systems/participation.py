"""Participation schemes: which clients take part in a round, how often each was drawn, and what
each weighs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedcore.random import generator
from fedcore.spec.participation import (
    AnyParticipation,
    Bernoulli,
    ByShare,
    Full,
    Trace,
    Uniform,
    Weighting,
    WithoutReplacement,
    WithReplacement,
)
from fedcore.spec.systems import Stragglers
from fedcore.systems.availability import SKIP_COST, Probabilities, Reachable, probabilities
from fedcore.systems.work import least_cohort

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The clients drawn in a round, ascending, each once; `times` counts repeated draws."""

    clients: Ids
    times: Ids

    def __getitem__(self, kept: NDArray[np.bool_]) -> "Drawn":
        return Drawn(self.clients[kept], self.times[kept])


def draw(
    scheme: AnyParticipation, share: Floats, seed: int, round: int, reachable: Reachable | None = None
) -> Drawn:
    """The clients of one round (counted from 1) out of those `reachable`, None meaning all.

    `share` [N] is p.

    There may be none, and fewer than the scheme asks for where fewer can be reached. The time this
    takes depends on the size of the cohort, hardly on N, unless only few can be reached or they are
    drawn `by_share`.
    """
    clients, times = np.unique(
        _draws(scheme, share, reachable, generator(seed, "cohort", round), round), return_counts=True
    )
    return Drawn(clients.astype(np.int64), times.astype(np.int64))


def _draws(
    scheme: AnyParticipation, share: Floats, reachable: Reachable | None, lot: np.random.Generator, round: int
) -> Ids:
    population = len(share)
    match scheme:
        case Full():
            return np.arange(population) if reachable is None else reachable.all()
        case Trace():
            return _among(reachable, np.array(scheme.rounds[round - 1], np.int64))
        case Bernoulli(probability=float(probability)):
            # As many as there would be, and any so many of them: no lot for those who stay away.
            return _among(
                reachable, lot.choice(population, lot.binomial(population, probability), replace=False)
            )
        case Bernoulli():
            return _among(reachable, _by_chance(probabilities(scheme.probability), lot))
        case WithReplacement() | ByShare():
            sample = _distinct if isinstance(scheme, ByShare) else _weighted
            return _sampled(
                lambda among, size: sample(share, among, size, lot), reachable, scheme.cohort_size(population)
            )
        case Uniform() | WithoutReplacement():
            return _sampled(
                lambda among, size: _uniform(population, among, size, lot),
                reachable,
                scheme.cohort_size(population),
            )


def _among(reachable: Reachable | None, clients: Ids) -> Ids:
    return clients if reachable is None else clients[reachable.has(clients)]


def _by_chance(chances: Probabilities, lot: np.random.Generator) -> Ids:
    """Each by a chance of its own."""
    population = len(chances.each)
    if chances.most * SKIP_COST > 1:
        return np.flatnonzero(lot.random(population) < chances.each)
    # Some as if all had the largest chance, and of those each by what its own is of that.
    some = lot.choice(population, lot.binomial(population, chances.most), replace=False)
    return some[lot.random(len(some)) * chances.most < chances.each[some]]


def _sampled(sample: Callable[[Ids | None, int], Ids], reachable: Reachable | None, size: int) -> Ids:
    """`sample` so many among those who can be reached.

    Of clients drawn from everybody, in whatever order they come, the first that can be reached are
    a draw from all that can. Whether there are enough of them says nothing about who they are;
    where there are not, all who can be reached are drawn from anew.
    """
    if reachable is None:
        return sample(None, size)
    tries = reachable.oversample_size(size)
    if tries is not None:
        found = _among(reachable, sample(None, tries))
        if len(found) >= size:
            return found[:size]
    return sample(reachable.all(), size)


def _uniform(population: int, among: Ids | None, size: int, lot: np.random.Generator) -> Ids:
    """So many without replacement, in random order; fewer where there are fewer."""
    return lot.choice(
        population if among is None else among,
        min(size, population if among is None else len(among)),
        replace=False,
    )


def _weighted(share: Floats, among: Ids | None, size: int, lot: np.random.Generator) -> Ids:
    """So many draws with replacement by share; none where those to draw from have no share."""
    ends = _ends_of(_Shares(share)) if among is None else _ends(share[among])
    drawn: Ids = ends.searchsorted(lot.random(size if len(ends) else 0), side="right")
    return drawn if among is None else among[drawn]


def _distinct(share: Floats, among: Ids | None, size: int, lot: np.random.Generator) -> Ids:
    """So many different ones by share, in the order in which they are drawn.

    Fewer where fewer have a share.
    """
    clients = np.flatnonzero(share) if among is None else among[share[among] > 0]
    if not len(clients):
        return clients
    return lot.choice(clients, min(size, len(clients)), replace=False, p=_normalised(share[clients]))


class _Shares:
    """Shares [N], by identity: what is computed from those of a problem serves all its rounds."""

    def __init__(self, shares: Floats) -> None:
        self.shares = shares

    def __hash__(self) -> int:
        return id(self.shares)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shares) and self.shares is other.shares


@lru_cache(maxsize=4)
def _ends_of(held: _Shares) -> Floats:
    return _ends(held.shares)


def _ends(shares: Floats) -> Floats:
    """[N] where each client's stretch of the unit interval ends, as NumPy's `choice` has it.

    None where nobody has a share.
    """
    ends: Floats = np.cumsum(shares / shares.sum()) if shares.any() else np.zeros(0)
    return ends / ends[-1:]


def weights(
    scheme: AnyParticipation,
    arrived: Drawn,
    share: Floats,
    preferred: Weighting | None,
    cohort: int | None = None,
    stragglers: Stragglers | None = None,
) -> Floats:
    """Aggregation weights [M] of the clients that reach the server, out of a `cohort` of that many
    clients (None: all arrived).

    The specification's `weighting` comes first, then the algorithm's `preferred`, then the scheme's
    own: p_i renormalised (full, uniform, trace), 1/K a draw (S1, by share), (N/K) p_i (S2). With
    `unbiased` the expectation of sum_i w_i Delta_i over cohorts, and over which of their clients
    are dropped as `stragglers`, is sum_i p_i Delta_i.
    """
    if not len(arrived.clients):
        return np.zeros(0)
    held: Floats = share[arrived.clients]
    times = arrived.times
    match scheme.weighting or preferred or _own_weighting(scheme):
        case "samples":
            return _normalised(held * times)
        case "uniform":
            return _normalised(times.astype(np.float64))
        case "original":
            return held * times
        case "unbiased":
            # Stragglers are any of the cohort alike, so each drawn client arrives with this chance,
            # unless all are dropped.
            arrives = 1.0 if cohort is None else len(times) / cohort
            kept = _chance_to_keep_any(scheme, share, arrived.clients, stragglers)
            return held * times / (_expected_draws(scheme, share, arrived.clients) * arrives * kept)


def objective_weights(scheme: AnyParticipation, share: Floats, preferred: Weighting | None) -> Floats:
    """v [N], what each F_i counts in the objective of an algorithm whose clients count once: 1/N if
    they weigh alike, else p_i.
    """
    return np.full(len(share), 1 / len(share)) if (scheme.weighting or preferred) == "uniform" else share


def _normalised(weight: Floats) -> Floats:
    total = float(weight.sum())
    return weight / total


def _own_weighting(scheme: AnyParticipation) -> Weighting:
    match scheme:
        case WithReplacement() | ByShare():
            return "uniform"
        case WithoutReplacement():
            return "unbiased"
        case _:
            return "samples"


def _expected_draws(scheme: AnyParticipation, share: Floats, clients: Ids) -> Floats:
    """[M] how often each of `clients` [M] is drawn in a round, in expectation."""
    match scheme:
        case WithReplacement():
            expected: Floats = scheme.cohort_size(len(share)) * share[clients]
            return expected
        case Uniform() | WithoutReplacement():
            return np.full(len(clients), scheme.cohort_size(len(share)) / len(share))
        case Bernoulli():
            return np.broadcast_to(probabilities(scheme.probability).each, len(share))[clients]
        case _:
            return np.ones(len(clients))


def _chance_to_keep_any(
    scheme: AnyParticipation, share: Floats, clients: Ids, stragglers: Stragglers | None
) -> Floats | float:
    """[M] the chance that a cohort in which a client is does not lose all its clients as
    stragglers; 1 where its size is fixed.

    It does if it has fewer than m clients (`least_cohort`), whose number is 1 + Binomial(N - 1, q)
    for one probability q. For m = 2 it is the chance that nobody else is drawn: prod_(j != i) (1 -
    q_j), or p_i^(K - 1) of K draws by share.
    """
    if (
        stragglers is None
        or stragglers.policy != "drop"
        or not isinstance(scheme, Bernoulli | WithReplacement)
    ):
        return 1.0
    least = least_cohort(stragglers)
    if least == 1:
        return 1.0
    if isinstance(scheme, WithReplacement):
        alone: Floats = share[clients] ** (scheme.cohort_size(len(share)) - 1)
        return 1 - alone
    if isinstance(scheme.probability, float):
        from scipy.special import bdtrc

        return float(bdtrc(least - 2, len(share) - 1, scheme.probability))
    absent = 1 - probabilities(scheme.probability).each
    certain, others = absent == 0, float(np.prod(absent[absent > 0]))
    nobody_else = np.where(
        certain.sum() > certain[clients], 0.0, others / np.where(certain, 1.0, absent)[clients]
    )
    return np.asarray(1 - nobody_else)


def iterate_factor(scheme: AnyParticipation, cohort_weights: Floats) -> float:
    """Factor of x before the weighted changes are added: sum_S (N/K) p_i in S2, which averages
    models; else 1.
    """
    averages_models = isinstance(scheme, WithoutReplacement) and scheme.weighting is None
    return float(cohort_weights.sum()) if averages_models else 1.0
