"""Clients that take part in a round, and the bytes they send and receive, estimated from a specification."""

from collections import Counter
from collections.abc import Sequence
from itertools import repeat, starmap
from operator import mul
from statistics import fmean

from fedcore.core import Algorithm
from fedcore.messages import DENSE, answer_of, messages_of, report_of, total_bytes
from fedcore.spec import ExperimentSpec
from fedcore.spec.problem import dimension, population


def drawn_clients(spec: ExperimentSpec) -> float:
    """Mean number of distinct clients sampled in a round; in an asynchronous run, of clients that
    arrive.
    """
    if spec.asynchrony is not None:
        return spec.asynchrony.mean_arrivals(spec.participation, population(spec.problem))
    given = given_cohorts(spec)
    if given is not None:
        return fmean(map(len, given))
    clients, availability = population(spec.problem), spec.systems.availability
    return fmean(
        spec.participation.expected_count(reachable, clients, spec.rounds)
        for reachable in ([clients] if availability is None else availability.counts(clients))
    )


def informed_clients(spec: ExperimentSpec) -> float:
    """Mean number of distinct clients that receive the model in a round: those sampled, or all
    candidates if these are asked for a value.
    """
    scheme, availability = spec.participation, spec.systems.availability
    if answer_of(scheme, 1) is None:
        return drawn_clients(spec)
    clients = population(spec.problem)
    counts = [clients] if availability is None else availability.counts(clients)
    return fmean(map(scheme.expected_candidates, counts))


def client_odds(spec: ExperimentSpec) -> Counter[float]:
    """Number of clients by their probability of receiving the model, which is the same in every
    round.
    """
    clients, availability = population(spec.problem), spec.systems.availability
    chosen = spec.participation.odds(clients) if spec.asynchrony is None else None
    reachable = repeat(1.0, clients) if availability is None else availability.odds(clients)
    if chosen is None or reachable is None:
        return Counter({min(informed_clients(spec) / clients, 1.0): clients})
    return Counter(starmap(mul, zip(chosen, reachable, strict=True)))


def given_cohorts(spec: ExperimentSpec) -> list[set[int]] | None:
    """Cohort of every round, if the specification lists them; else None."""
    cohorts, availability = spec.participation.listed(spec.rounds), spec.systems.availability
    if cohorts is None or availability is None:
        return cohorts
    reachable = availability.listed(spec.rounds)
    if reachable is None:
        return None
    return [cohort & present for cohort, present in zip(cohorts, reachable, strict=False)]


def bytes_up(spec: ExperimentSpec, algorithm: Algorithm, arrived: float, word: int) -> float:
    """Bytes of a run that its clients send to the server, `arrived` of them in each round."""
    dim = dimension(spec.problem)
    sent = total_bytes(messages_of(algorithm, dim), algorithm, "up", spec.rounds, word, ("before", "with"))
    return arrived * sent + spec.rounds * _reported_bytes(spec, arrived, dim, word)


def _reported_bytes(spec: ExperimentSpec, arrived: float, dim: int, word: int) -> float:
    """Bytes per round of the values that candidates and participants report for the selection."""
    answer, report = answer_of(spec.participation, dim), report_of(spec.participation)
    asked = 0.0 if answer is None else informed_clients(spec) * answer.size(DENSE, word)
    return asked + (0.0 if report is None else arrived * report.size(DENSE, word))


def bytes_down(spec: ExperimentSpec, algorithm: Algorithm, drawn: float, arrived: float, word: int) -> float:
    """Bytes that clients download in a run: a client's first download is dense, a later one makes
    up for the rounds it missed, or is dense where that is shorter.
    """
    messages = messages_of(algorithm, dimension(spec.problem))
    with_model, exchanged, settled = (
        total_bytes(messages, algorithm, "down", spec.rounds, word, (when,))
        for when in ("with", "before", "after")
    )
    caught_up = 0.0
    for one in messages:
        if one.catches_up:
            size, dense = one.size(algorithm.downlink, word), one.size(DENSE, word)
            caught_up += count_reached(spec) * dense + _missed(spec, algorithm, dense / size) * size
    return drawn * with_model + arrived * (exchanged + settled) + caught_up


def _missed(spec: ExperimentSpec, algorithm: Algorithm, most: float) -> float:
    """Messages of earlier rounds that clients are sent, none for more than `most` of them at a time."""
    if "next_model" not in algorithm.rule.needs():
        return _made_up(spec, most)
    # At the next of a client's rounds those of the rounds between.
    return _made_up(spec, most + 1) - _made_up(spec, 1)


def count_reached(spec: ExperimentSpec) -> float:
    """Clients that take part in some round of a run."""
    given = given_cohorts(spec)
    if given is not None:
        return len(set().union(*given))
    return sum(clients * (1 - (1 - odds) ** spec.rounds) for odds, clients in client_odds(spec).items())


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
    """Expected sum of min(gap, `most`) over the gaps between the rounds of one client, which takes
    part in each of T = `rounds` rounds with odds s = `odds`.

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
