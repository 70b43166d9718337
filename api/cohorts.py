"""How many clients take part in a round, estimated from a specification."""

from statistics import fmean

from fedcore.spec import ExperimentSpec
from fedcore.spec.availability import AnyAvailability, AvailabilityTrace, Probability
from fedcore.spec.participation import Bernoulli, Full, Trace, WithReplacement
from fedcore.spec.shapes import population


def drawn_clients(spec: ExperimentSpec) -> float:
    """Distinct clients that a round draws, in the mean over rounds."""
    return fmean(_drawn_from(reachable, spec) for reachable in _reachable(spec.systems.availability, population(spec.problem)))


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
    """Clients that can be reached in a round, for each kind of round there is."""
    match availability:
        case None:
            return [clients]
        case AvailabilityTrace(rounds=rounds):
            return [len(set(row)) for row in rounds]
        case _:
            return [_expected(availability.probability, clients)]


def _expected(probability: Probability, clients: int) -> float:
    return sum(probability) if isinstance(probability, tuple) else clients * probability
