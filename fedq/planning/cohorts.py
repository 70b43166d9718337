"""How many clients take part in a round, estimated from a specification."""

from collections import Counter
from itertools import repeat, starmap
from operator import mul
from statistics import fmean

from fedcore.spec import ExperimentSpec
from fedcore.spec.shapes import population


def drawn_clients(spec: ExperimentSpec) -> float:
    """Distinct clients that a round draws, in the mean over rounds."""
    given = given_cohorts(spec)
    if given is not None:
        return fmean(map(len, given))
    clients, availability = population(spec.problem), spec.systems.availability
    return fmean(
        spec.participation.expected_count(reachable, clients, spec.rounds)
        for reachable in ([clients] if availability is None else availability.counts(clients))
    )


def client_odds(spec: ExperimentSpec) -> Counter[float]:
    """How many clients have which odds of taking part in a round, alike in every round."""
    clients, availability = population(spec.problem), spec.systems.availability
    chosen = spec.participation.odds(clients)
    reachable = repeat(1.0, clients) if availability is None else availability.odds(clients)
    if chosen is None or reachable is None:
        return Counter({min(drawn_clients(spec) / clients, 1.0): clients})
    return Counter(starmap(mul, zip(chosen, reachable, strict=True)))


def given_cohorts(spec: ExperimentSpec) -> list[set[int]] | None:
    """The cohort of every round, if the specification lists it."""
    cohorts, availability = spec.participation.listed(spec.rounds), spec.systems.availability
    if cohorts is None or availability is None:
        return cohorts
    reachable = availability.listed(spec.rounds)
    if reachable is None:
        return None
    return [cohort & present for cohort, present in zip(cohorts, reachable, strict=True)]
