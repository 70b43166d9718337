"""The cohort of a round: the clients that a participation scheme draws, how often each was drawn, and
their weights in the aggregate and in the objective.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedcore.lazy import np, random
from fedcore.systems.availability import Reachable
from fedcore.systems.participation.base import (
    Participation,
    RoundFacts,
    SelectionState,
    Weighting,
    normalise_weights,
)
from fedcore.systems.work import Stragglers, least_cohort

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The clients drawn in a round, ascending, each once; `times` counts repeated draws."""

    clients: Ids
    times: Ids
    expected: Floats | None = None
    """[M] how often each is drawn in expectation, if that is known of this round only; None: as the
    scheme's `expected_draws` says.
    """
    chance_of_others: Floats | None = None
    """[M] as of `Selection`; None: as the scheme's `chance_to_keep_any` says."""

    def __getitem__(self, kept: NDArray[np.bool_]) -> Drawn:
        known = (self.expected, self.chance_of_others)
        return Drawn(
            self.clients[kept], self.times[kept], *(part if part is None else part[kept] for part in known)
        )


def draw(
    participation: Participation, share: Floats, seed: int, round: int, reachable: Reachable | None = None
) -> Drawn:
    """The clients of one round (counted from 1) out of those `reachable`, None meaning all.

    `share` [N] is p.

    There may be none, and fewer than the scheme asks for where fewer can be reached. The time this
    takes depends on the size of the cohort, hardly on N, unless only few can be reached or they are
    drawn `by_share`.
    """
    drawn = participation.draw(share, reachable, random.generator(seed, "cohort", round), round)
    clients, times = np.unique(drawn, return_counts=True)
    if len(clients):
        given = f"{type(participation).__name__}.draw"
        if clients.dtype.kind not in "iu" or clients[0] < 0 or clients[-1] >= len(share):
            raise TypeError(f"{given} must return ids of clients, integers below {len(share)}, not {drawn}")
        if reachable is not None and not reachable.has(clients.astype(np.int64)).all():
            raise ValueError(f"{given} drew clients that are not `reachable` in round {round}")
    return Drawn(clients.astype(np.int64), times.astype(np.int64))


def select(
    participation: Participation,
    candidates: Drawn,
    answers: Floats | None,
    state: SelectionState,
    facts: RoundFacts,
    seed: int,
) -> Drawn:
    """The clients that `participation` selects among the `candidates` that it has drawn."""
    rng = random.generator(seed, "selection of clients", facts.round)
    selected = participation.select(candidates.clients, answers, state, facts, rng)
    clients, first = np.unique(selected.clients, return_index=True)
    kept = np.isin(candidates.clients, clients)
    expected, others = (part if part is None else part[first] for part in selected[1:])
    return replace(candidates[kept], expected=expected, chance_of_others=others)


def weights(
    participation: Participation,
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
    match participation.weighting or preferred or participation.own_weighting:
        case "samples":
            return normalise_weights(held * times)
        case "uniform":
            return normalise_weights(times.astype(np.float64))
        case "original":
            return held * times
        case "unbiased":
            # Stragglers are any of the cohort alike, so each drawn client arrives with this chance,
            # unless all are dropped.
            arrives = 1.0 if cohort is None else len(times) / cohort
            kept = _chance_to_keep_any(participation, share, arrived, stragglers)
            expected = arrived.expected
            if expected is None:
                expected = participation.expected_draws(share, arrived.clients)
            return held * times / (expected * arrives * kept)


def objective_weights(participation: Participation, share: Floats, preferred: Weighting | None) -> Floats:
    """v [N], what each F_i counts in the objective of an algorithm whose clients count once: 1/N if
    they weigh alike, else p_i.
    """
    return (
        np.full(len(share), 1 / len(share)) if (participation.weighting or preferred) == "uniform" else share
    )


def iterate_factor(participation: Participation, cohort_weights: Floats) -> float:
    """Factor of x before the weighted changes are added: sum_S (N/K) p_i in S2, which averages
    models; else 1.
    """
    return float(cohort_weights.sum()) if participation.scales_model else 1.0


def _chance_to_keep_any(
    participation: Participation, share: Floats, arrived: Drawn, stragglers: Stragglers | None
) -> Floats | float:
    """[M] the chance that a cohort in which a client is does not lose all clients as stragglers."""
    if stragglers is None or stragglers.policy != "drop":
        return 1.0
    least = least_cohort(stragglers)
    if least == 1:
        return 1.0
    # Of `chance_of_others` no other least size is accepted (`spec.checks`).
    known = participation.chance_to_keep_any(share, arrived.clients, least)
    return known if arrived.chance_of_others is None else arrived.chance_of_others
