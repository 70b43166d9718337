"""What a specification would cost, estimated without loading anything: every client is taken to hold the mean number of samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from statistics import fmean

from api.cohorts import drawn_clients
from api.schemas import ArmPlan, Plan
from fedcore.core import Algorithm, Compressor
from fedcore.spec import Arm, ExperimentSpec
from fedcore.spec.exact import LeastSquares, Quadratic
from fedcore.spec.local import BatchSize
from fedcore.spec.participation import Trace
from fedcore.spec.problem import Problem
from fedcore.spec.shapes import data_shape, dimension, population
from fedcore.spec.systems import AnyWork, Constant, NormalDraw, PerClient, UniformDraw

COHORT_VECTORS = 6
"""Vectors [D] held per client while it trains: start, model, gradient, direction, velocity, change."""
SERVER_VECTORS = 3
"""Model, residual of the downlink, direction."""


def plan(spec: ExperimentSpec) -> Plan:
    """The arms and runs of `spec`, and what they would cost."""
    points = spec.arms()
    arms = [_plan_arm(point) for point in points]
    return Plan(
        name=spec.name,
        arms=arms,
        seeds=list(spec.seeds),
        runs=sum(arm.runs for arm in arms),
        rounds=sum(arm.runs * point.spec.rounds for arm, point in zip(arms, points, strict=True)),
        local_steps=sum(arm.runs * arm.local_steps for arm in arms),
        bytes_up=sum(arm.runs * arm.bytes_up for arm in arms),
        bytes_down=sum(arm.runs * arm.bytes_down for arm in arms),
        memory_bytes=max(arm.memory_bytes for arm in arms),
        specification=spec.model_dump(mode="json"),
    )


def _plan_arm(arm: Arm) -> ArmPlan:
    spec = arm.spec
    algorithm, cohort = spec.build(), _cohort(spec)
    word = 8 if spec.precision == "float64" else 4
    return ArmPlan(
        index=arm.index,
        name=arm.name,
        settings=arm.settings,
        runs=len(spec.seeds),
        parameters=dimension(spec.problem),
        local_steps=round(spec.rounds * cohort.steps),
        bytes_up=round(spec.rounds * cohort.arrived * _bytes_up(spec, algorithm, word) + _gathered(spec, algorithm, cohort, word).up),
        bytes_down=round(_bytes_down(spec, algorithm, cohort, word) + _gathered(spec, algorithm, cohort, word).down),
        memory_bytes=_memory(spec, algorithm, cohort, word),
    )


@dataclass(frozen=True, slots=True)
class _Cohort:
    """One mean round."""

    drawn: float
    """Clients that train."""
    arrived: float
    """Clients whose work reaches the server."""
    steps: float
    """Their local steps."""


def _cohort(spec: ExperimentSpec) -> _Cohort:
    drawn = drawn_clients(spec)
    stragglers = spec.systems.stragglers
    slow = drawn * stragglers.fraction if stragglers else 0.0
    steps = (drawn - slow) * _steps(spec, partial=False)
    if stragglers and stragglers.policy == "drop":
        return _Cohort(drawn, drawn - slow, steps)
    return _Cohort(drawn, drawn, steps + slow * _steps(spec, partial=True))


def _steps(spec: ExperimentSpec, *, partial: bool) -> float:
    """Local steps of one client; `partial`, of a straggler."""
    epochs = _mean(spec.systems.epochs, spec.local.epochs)
    steps = _mean(spec.systems.steps, spec.local.steps)
    samples = _samples(spec.problem) / population(spec.problem)
    batch = _mean(spec.systems.batch_size, spec.local.batch_size) or samples
    length = epochs if epochs is not None else steps
    assert length is not None
    if partial:
        length = (1 + length) / 2
    return length * ceil(samples / min(batch, samples)) if epochs is not None else length


def _mean(work: AnyWork | None, fixed: BatchSize | None) -> float | None:
    match work:
        case None:
            return None if fixed == "full" else fixed
        case Constant(value=value):
            return value
        case PerClient(values=values):
            return fmean(values)
        case UniformDraw(low=low, high=high):
            return (low + high) / 2
        case NormalDraw(mean=mean, low=low, high=high):
            return min(max(mean, low), high)
        case _:
            return fmean(value for row in work.rounds for value in row)


def _samples(problem: Problem) -> int:
    dataset = problem.dataset
    if not isinstance(dataset, LeastSquares):
        return data_shape(dataset).train_samples
    if dataset.clients:
        return sum(len(client.b) for client in dataset.clients)
    assert dataset.generate is not None
    return dataset.generate.samples * dataset.generate.clients


@dataclass(frozen=True, slots=True)
class _Exchanged:
    """Bytes of a run."""

    up: float
    down: float


def _gathered(spec: ExperimentSpec, algorithm: Algorithm, cohort: _Cohort, word: int) -> _Exchanged:
    """Of the exchanges of gradients before training; the first may be exact or left out."""
    if not algorithm.rule.gathers():
        return _Exchanged(0, 0)
    dim, opening = dimension(spec.problem), algorithm.rule.opening()
    first = Compressor().message_bytes(dim, word) if opening == "exact" else 0
    compressed = spec.rounds - (opening != "compressed")
    up, down = (first + compressed * link.message_bytes(dim, word) for link in (algorithm.uplink, algorithm.downlink))
    return _Exchanged(cohort.arrived * up, cohort.arrived * down)


def _models(algorithm: Algorithm) -> tuple[Compressor, Compressor]:
    """What models travel under, up and down: whole where gradients are exchanged instead."""
    return (Compressor(), Compressor()) if algorithm.rule.gathers() else (algorithm.uplink, algorithm.downlink)


def _bytes_up(spec: ExperimentSpec, algorithm: Algorithm, word: int) -> int:
    """Of one client in one round."""
    dim = dimension(spec.problem)
    return _models(algorithm)[0].message_bytes(dim, word) + len(algorithm.rule.shared()) * dim * word


def _bytes_down(spec: ExperimentSpec, algorithm: Algorithm, cohort: _Cohort, word: int) -> float:
    """Of a run: a client's first download is dense, a later one makes up for the rounds it missed, or is dense where that is shorter."""
    dim = dimension(spec.problem)
    dense, message = Compressor().message_bytes(dim, word), _models(algorithm)[1].message_bytes(dim, word)
    shared = spec.rounds * cohort.drawn * len(algorithm.rule.shared())
    return (_reached(spec, cohort) + shared) * dense + _made_up(spec, cohort, dense / message) * message


def _reached(spec: ExperimentSpec, cohort: _Cohort) -> float:
    """Clients that take part in some round of a run."""
    if isinstance(spec.participation, Trace):
        return len({client for row in spec.participation.rounds[: spec.rounds] for client in row})
    clients = population(spec.problem)
    return clients * (1 - math.pow(1 - cohort.drawn / clients, spec.rounds))


def _made_up(spec: ExperimentSpec, cohort: _Cohort, most: float) -> float:
    """The sum of min(gap, `most`) over the gaps between the rounds of each client."""
    if isinstance(spec.participation, Trace):
        return _made_up_in(spec.participation.rounds[: spec.rounds], most)
    clients = population(spec.problem)
    return clients * _mean_made_up(spec.rounds, cohort.drawn / clients, most)


def _made_up_in(rows: Sequence[Sequence[int]], most: float) -> float:
    last: dict[int, int] = {}
    total = 0.0
    for round, row in enumerate(rows):
        total += sum(min(round - last.get(client, round), most) for client in set(row))
        last |= dict.fromkeys(row, round)
    return total


def _mean_made_up(rounds: int, share: float, most: float) -> float:
    """Of one client that takes part in each of T = `rounds` rounds with odds s = `share`.

    With q = 1 - s it has A_j = s (T - j) q^(j-1) - q^j + q^T gaps of j rounds or more; the sum is A_1 + ... + A_most.
    """
    q, whole = 1 - share, min(int(most), rounds)
    beyond, end = q**whole, q**rounds
    counted = rounds * (1 - beyond) - (1 - (whole + 1) * beyond + whole * q * beyond) / share - q * (1 - beyond) / share + whole * end
    part = share * (rounds - whole - 1) * beyond - q * beyond + end if whole < rounds else 0.0
    return counted + (most - whole) * part


def _memory(spec: ExperimentSpec, algorithm: Algorithm, cohort: _Cohort, word: int) -> int:
    vector = dimension(spec.problem) * word
    booked, booked_per_client = algorithm.aggregator.size()
    server = SERVER_VECTORS + len(algorithm.server.start()) + len(algorithm.rule.shared()) + booked
    kept = len(algorithm.rule.memory()) + algorithm.uplink.error_feedback + booked_per_client
    return round(_data_bytes(spec.problem, word) + vector * (server + kept * _reached(spec, cohort) + COHORT_VECTORS * cohort.drawn))


def _data_bytes(problem: Problem, word: int) -> int:
    shape, samples = data_shape(problem.dataset), _samples(problem)
    if shape.symbols:
        return samples * prod(shape.features) * (1 if shape.symbols <= 256 else 4) + shape.symbols * shape.embedding * word
    numbers = problem.dataset.dim**2 if isinstance(problem.dataset, Quadratic) else prod(shape.features)
    return samples * numbers * word
