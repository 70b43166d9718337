"""Estimates of the number of clients that take part in a round."""

from collections import Counter
from collections.abc import Iterable
from itertools import cycle, repeat, starmap
from operator import mul
from statistics import fmean

from fedcore.spec import ExperimentSpec
from fedcore.spec.participation import Bernoulli, Full, Trace, WithReplacement
from fedcore.spec.shapes import population
from fedcore.spec.systems import AnyAvailability, AvailabilityTrace, Probability


def drawn_clients(spec: ExperimentSpec) -> float:
    """Mean number of distinct clients sampled in a round."""
    given = given_cohorts(spec)
    if given is not None:
        return fmean(map(len, given))
    return fmean(
        _drawn_from(reachable, spec)
        for reachable in _reachable(spec.systems.availability, population(spec.problem))
    )


def client_odds(spec: ExperimentSpec) -> Counter[float]:
    """Number of clients by their probability of taking part, which is the same in every round."""
    clients, scheme, availability = population(spec.problem), spec.participation, spec.systems.availability
    if isinstance(availability, AvailabilityTrace) or not isinstance(scheme, Full | Bernoulli):
        return Counter({min(drawn_clients(spec) / clients, 1.0): clients})
    chosen = _each(scheme.probability, clients) if isinstance(scheme, Bernoulli) else repeat(1.0, clients)
    reachable = _each(availability.probability, clients) if availability else repeat(1.0, clients)
    return Counter(starmap(mul, zip(chosen, reachable, strict=True)))


def given_cohorts(spec: ExperimentSpec) -> list[set[int]] | None:
    """Cohort of every round, if the specification lists them; else None."""
    scheme, availability = spec.participation, spec.systems.availability
    if not isinstance(scheme, Trace) or not isinstance(availability, AvailabilityTrace | None):
        return None
    rows = scheme.rounds[: spec.rounds]
    if availability is None:
        return [set(row) for row in rows]
    return [
        reachable.intersection(row)
        for row, reachable in zip(rows, cycle(map(set, availability.rounds)), strict=False)
    ]


def _drawn_from(reachable: float, spec: ExperimentSpec) -> float:
    clients, scheme = population(spec.problem), spec.participation
    match scheme:
        case Full():
            return reachable
        case Trace(rounds=rounds):
            return fmean(len(set(row)) for row in rounds[: spec.rounds]) * reachable / clients
        case Bernoulli(probability=probability):
            return _expected(probability, clients) * reachable / clients
        case WithReplacement():
            return reachable * (1 - (1 - 1 / max(reachable, 1)) ** scheme.cohort_size(clients))
        case _:
            return min(scheme.cohort_size(clients), reachable)


def _reachable(availability: AnyAvailability | None, clients: int) -> list[float]:
    """Expected number of available clients, for each kind of round."""
    match availability:
        case None:
            return [clients]
        case AvailabilityTrace(rounds=rounds):
            return [len(set(row)) for row in rounds]
        case _:
            return [_expected(availability.probability, clients)]


def _each(probability: Probability, clients: int) -> Iterable[float]:
    return probability if isinstance(probability, tuple) else repeat(probability, clients)


def _expected(probability: Probability, clients: int) -> float:
    return sum(probability) if isinstance(probability, tuple) else clients * probability
