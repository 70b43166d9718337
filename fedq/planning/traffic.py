"""Clients that take part in a round, and the bytes they send and receive, estimated from a specification."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle, repeat, starmap
from operator import mul
from statistics import fmean

from fedcore.core import Algorithm, Compressor
from fedcore.spec import ExperimentSpec
from fedcore.spec.participation import Bernoulli, Full, Trace, WithReplacement
from fedcore.spec.shapes import dimension, population
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


def bytes_up(spec: ExperimentSpec, algorithm: Algorithm, arrived: float, word: int) -> float:
    """Of a run in which so many clients reach the server in a mean round."""
    dim = dimension(spec.problem)
    message = _model_links(algorithm)[0].message_bytes(dim, word) + len(algorithm.rule.shared()) * dim * word
    return arrived * (spec.rounds * message + _exchanged(spec, algorithm, algorithm.uplink, word))


def bytes_down(spec: ExperimentSpec, algorithm: Algorithm, drawn: float, arrived: float, word: int) -> float:
    """Of a run: a client's first download is dense, a later one makes up for the rounds it missed,
    or is dense where that is shorter.
    """
    dim = dimension(spec.problem)
    dense, message = (
        Compressor().message_bytes(dim, word),
        _model_links(algorithm)[1].message_bytes(dim, word),
    )
    shared = spec.rounds * drawn * len(algorithm.rule.shared())
    models = (reached(spec) + shared) * dense + _messages(spec, algorithm, arrived, dense / message) * message
    return models + arrived * _exchanged(spec, algorithm, algorithm.downlink, word)


def _messages(spec: ExperimentSpec, algorithm: Algorithm, arrived: float, most: float) -> float:
    """Messages of the downlink beside first downloads, none for more than `most` of them at a
    time.
    """
    if not algorithm.rule.receives_new_model():
        return _made_up(spec, most)
    # One at the end of each of a client's rounds, and at the next those of the rounds between.
    return spec.rounds * arrived + _made_up(spec, most + 1) - _made_up(spec, 1)


def reached(spec: ExperimentSpec) -> float:
    """Clients that take part in some round of a run."""
    given = given_cohorts(spec)
    if given is not None:
        return len(set().union(*given))
    return sum(clients * (1 - (1 - odds) ** spec.rounds) for odds, clients in client_odds(spec).items())


def _model_links(algorithm: Algorithm) -> tuple[Compressor, Compressor]:
    """Links that models travel on, up and down; uncompressed where gradients travel instead."""
    return (
        (Compressor(), Compressor())
        if algorithm.rule.exchanges_gradients()
        else (algorithm.uplink, algorithm.downlink)
    )


def _exchanged(spec: ExperimentSpec, algorithm: Algorithm, link: Compressor, word: int) -> int:
    """Bytes of a client's exchanges of gradients before training, one in every round.

    The first may be exact or left out.
    """
    if not algorithm.rule.exchanges_gradients():
        return 0
    dim, opening = dimension(spec.problem), algorithm.rule.first_exchange()
    first = Compressor().message_bytes(dim, word) if opening == "exact" else 0
    return first + (spec.rounds - (opening != "compressed")) * link.message_bytes(dim, word)


def _made_up(spec: ExperimentSpec, most: float) -> float:
    """The sum of min(gap, `most`) over the gaps between the rounds of each client."""
    given = given_cohorts(spec)
    if given is not None:
        return _made_up_in(given, most)
    return sum(
        clients * _mean_made_up(spec.rounds, odds, most) for odds, clients in client_odds(spec).items()
    )


def _made_up_in(cohorts: Sequence[set[int]], most: float) -> float:
    last: dict[int, int] = {}
    total = 0.0
    for round, cohort in enumerate(cohorts):
        total += sum(min(round - last.get(client, round), most) for client in cohort)
        last |= dict.fromkeys(cohort, round)
    return total


def _mean_made_up(rounds: int, odds: float, most: float) -> float:
    """Of one client that takes part in each of T = `rounds` rounds with odds s = `odds`.

    With q = 1 - s it has A_j = s (T - j) q^(j-1) - q^j + q^T gaps of j rounds or more; the sum is
    A_1 + ... + A_most.
    """
    if not odds:
        return 0.0
    q, whole = 1 - odds, min(int(most), rounds)
    beyond, end = q**whole, q**rounds
    counted = (
        rounds * (1 - beyond)
        - (1 - (whole + 1) * beyond + whole * q * beyond) / odds
        - q * (1 - beyond) / odds
        + whole * end
    )
    part = odds * (rounds - whole - 1) * beyond - q * beyond + end if whole < rounds else 0.0
    return counted + (most - whole) * part
