"""Asynchronous rounds against event queues written out by hand, synchronous rounds as their limit,
and what holds of every event queue.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcore import ExperimentSpec, Simulation, run
from fedcore.data.plan import mini_batches
from fedcore.engine.event_queue import (
    Arrivals,
    EventQueue,
    Planned,
    await_arrivals,
    await_tier,
    draw_others,
)
from fedcore.engine.round import train_cohorts
from fedcore.engine.tiers import Tiers
from fedcore.errors import SpecificationError
from fedcore.random import generator
from fedcore.simulation.report import RoundReport
from fedcore.simulation.simulation import advance_batch
from fedcore.systems.asynchrony import FedBuff, HingeStaleness, PolynomialStaleness
from fedcore.systems.availability import RandomlyAvailable, Reachable, TraceAvailable
from fedcore.systems.work import Work
from fedcore.testing import runs
from tests.builders.specifications import (
    DIGITS_CNN,
    QUADRATIC,
    SYNTHETIC,
    Document,
    merged,
    quadratics,
    specification,
)

pytestmark = pytest.mark.usefixtures("factories_allowed")
Vector = NDArray[np.float64]
SPEEDS = [2.0, 3.1, 7.3, 11.9]
STEPS = [5, 1, 7, 3]
SECONDS = [0.2 + steps / speed for steps, speed in zip(STEPS, SPEEDS, strict=True)]
DEVICES: Document = {
    "steps_per_second": {"kind": "per_client", "values": SPEEDS},
    "latency_seconds": {"kind": "constant", "value": 0.1},
}
TIMED = merged(
    QUADRATIC,
    {
        "systems": {"devices": DEVICES},
        "rounds": 12,
        "evaluation": {
            "record_parameters": True,
            "measures": ["staleness", "max_staleness", "concurrency", "idle_share"],
        },
    },
)
EQUAL: Document = {"steps_per_second": {"kind": "constant", "value": 4.0}}


def descend(client: Document, x: Vector, steps: int, lr: float = 0.05) -> Vector:
    """Gradient descent on F(y) = y' H y / 2 - e' y + c."""
    y = x
    for _ in range(steps):
        y = y - lr * (np.array(client["H"]) @ y - np.array(client["e"]))
    return y


def longhand(
    step: Callable[[Vector, list[tuple[int, Vector, int]]], Vector], arrivals: int, rounds: int = 12
) -> Iterator[tuple[Vector, float, list[int]]]:
    """x, time and staleness after every step, if all four clients of TIMED are always at work.

    `step` is given x and, for each arrival, the client, the model it started from and its staleness.
    """
    x = np.array([1.0, -2.0, 0.5])
    training = {client: (SECONDS[client], x, 0) for client in range(4)}
    for version in range(rounds):
        arrived = sorted(training, key=lambda client: training[client][0])[:arrivals]
        now = training[arrived[-1]][0]
        came = [(client, training[client][1], version - training[client][2]) for client in arrived]
        x = step(x, came)
        training |= {client: (now + SECONDS[client], x, version + 1) for client in arrived}
        yield x, now, [staleness for _, _, staleness in came]


def assert_is(reports: list[RoundReport], expected: Iterator[tuple[Vector, float, list[int]]]) -> None:
    for report, (x, now, staleness) in zip(reports, expected, strict=True):
        np.testing.assert_allclose(report.extra["x"], x, rtol=0, atol=1e-12)
        assert report.extra["simulated_seconds"] == pytest.approx(now, abs=1e-9)
        assert report.extra["staleness"] == np.mean(staleness)
        assert report.extra["max_staleness"] == max(staleness)


def numbers(reports: list[RoundReport], measure: str) -> list[float]:
    values = [report.value(measure) for report in reports]
    return [value for value in values if value is not None]


@pytest.mark.parametrize("buffer", [1, 2, 3])
def test_fedbuff_is_its_algorithm(buffer: int) -> None:
    """x <- x + eta_g (1/K) sum_i Delta_i / sqrt(1 + tau_i)."""

    def step(x: Vector, came: list[tuple[int, Vector, int]]) -> Vector:
        total = np.zeros(3)
        for client, start, staleness in came:
            change = descend(quadratics()[client], start, STEPS[client]) - start
            total += change / np.sqrt(1 + staleness)
        return x + 0.7 * total / buffer

    asynchrony = {"kind": "fedbuff", "concurrency": 4, "buffer": buffer}
    spec = specification(TIMED, asynchrony=asynchrony, algorithm={"server_lr": 0.7})
    assert_is(list(run(spec)), longhand(step, buffer))


def test_samples_weigh_by_the_buffer() -> None:
    weights = [client["weight"] for client in quadratics()]

    def step(x: Vector, came: list[tuple[int, Vector, int]]) -> Vector:
        held = sum(weights[client] for client, _, _ in came)
        changes = (
            weights[client] / held * (descend(quadratics()[client], start, STEPS[client]) - start)
            for client, start, _ in came
        )
        return x + sum(changes, np.zeros(3))

    spec = specification(
        TIMED,
        asynchrony={"kind": "fedbuff", "concurrency": 4, "buffer": 2, "staleness": {"kind": "constant"}},
        participation={"kind": "full", "weighting": "samples"},
    )
    assert_is(list(run(spec)), longhand(step, 2))


def test_fedasync_is_its_algorithm() -> None:
    """x <- (1 - alpha_t) x + alpha_t y, of local objectives with rho/2 |y - x_i|^2."""
    rho = 0.3

    def step(x: Vector, came: list[tuple[int, Vector, int]]) -> Vector:
        ((client, start, staleness),) = came
        problem = quadratics()[client]
        y = start
        for _ in range(STEPS[client]):
            y = y - 0.05 * (np.array(problem["H"]) @ y - np.array(problem["e"]) + rho * (y - start))
        alpha = 0.6 * (1.0 if staleness <= 2 else 1 / (10 * (staleness - 2) + 1))
        return (1 - alpha) * x + alpha * y

    spec = specification(
        TIMED,
        algorithm={"kind": "fedprox", "mu": rho},
        asynchrony={
            "kind": "fedasync",
            "concurrency": 4,
            "alpha": 0.6,
            "staleness": {"kind": "hinge", "a": 10, "b": 2},
        },
    )
    reports = list(run(spec))
    assert_is(reports, longhand(step, 1))
    assert max(numbers(reports, "staleness")) > 2


def test_fedasync_with_alpha_1_and_one_client_at_a_time_is_sequential_descent() -> None:
    problem = {"dataset": {"kind": "quadratic", "clients": quadratics(1), "x0": [1.0, -2.0, 0.5]}}
    spec = specification(
        {**QUADRATIC, "problem": problem, "systems": {"devices": EQUAL}},
        asynchrony={"kind": "fedasync", "concurrency": 1, "alpha": 1.0},
    )
    expected = descend(quadratics(1)[0], np.array([1.0, -2.0, 0.5]), 5 * spec.rounds)
    np.testing.assert_allclose(list(run(spec))[-1].extra["x"], expected, rtol=0, atol=1e-12)


def longhand_tiers(tiers: list[list[int]]) -> Iterator[tuple[Vector, float, list[int], float]]:
    """x, time, staleness and mean clients at work after every step, of tiers of all clients of TIMED."""
    x, count = np.array([1.0, -2.0, 0.5]), len(tiers)
    models, ended, then = [x] * count, [0] * count, 0.0
    weights = [client["weight"] for client in quadratics()]
    began = [(0.0, x, 0)] * count
    for version in range(12):
        ends = [began[m][0] + max(SECONDS[client] for client in tiers[m]) for m in range(count)]
        m, now = int(np.argmin(ends)), min(ends)
        at_work = sum(
            max(0.0, min(began[tier][0] + SECONDS[client], now) - then)
            for tier in range(count)
            for client in tiers[tier]
        )
        _, start, start_version = began[m]
        trained = [descend(quadratics()[client], start, STEPS[client]) for client in tiers[m]]
        models[m] = np.average(trained, axis=0, weights=[weights[client] for client in tiers[m]])
        ended[m] += 1
        mixed = (ended[count - 1 - k] / sum(ended) * models[k] for k in range(count))
        x = sum(mixed, np.zeros(3))
        began[m] = (now, x, version + 1)
        yield x, now, [version - start_version] * len(tiers[m]), at_work / (now - then)
        then = now


@pytest.mark.parametrize("tiers", [[[0, 1, 2, 3]], [[1, 3], [0, 2]], [[1, 3], [2], [0]]])
def test_fedat_is_its_algorithm(tiers: list[list[int]]) -> None:
    """x <- sum_m T_(M+1-m) / T w_m, of tiers by the seconds of their clients: those of 3 and 1 are the
    least, and those of 0 the most.
    """
    spec = specification(TIMED, asynchrony={"kind": "fedat", "tiers": len(tiers)})
    reports, expected = list(run(spec)), list(longhand_tiers(tiers))
    assert_is(reports, ((x, now, staleness) for x, now, staleness, _ in expected))
    assert numbers(reports, "concurrency") == pytest.approx([at_work for *_, at_work in expected])
    assert numbers(reports, "idle_share") == pytest.approx([1 - at_work / 4 for *_, at_work in expected])


TIMED_SYNTHETIC = merged(
    SYNTHETIC,
    {
        "participation": {"kind": "full", "weighting": "uniform"},
        "local": {"epochs": None, "steps": 4, "batch_size": 24},
        "systems": {
            "stragglers": None,
            "steps": {"kind": "per_client", "values": [3, 1, 6, 2, 5, 4, 2, 7]},
            "devices": {"steps_per_second": {"kind": "log_normal", "median": 5.0, "sigma": 1.0}},
        },
        "algorithm": {"server_lr": 0.9},
    },
)
ALL_AT_ONCE: Document = {
    "kind": "fedbuff",
    "concurrency": 8,
    "buffer": 8,
}


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_a_buffer_for_all_clients_is_the_synchronous_run(engine: str, weighting: str) -> None:
    """To the bit: with mini-batches, compression with error feedback, and the clock."""
    changes: Document = {
        "participation": {"weighting": weighting},
        "compression": {
            "uplink": {"kind": "qsgd"},
            "downlink": {"kind": "top_k", "ratio": 0.2, "error_feedback": True},
        },
        "execution": {"engine": engine},
    }
    there, here = (
        runs.finished(specification(TIMED_SYNTHETIC, **changes, **more), 3)
        for more in ({}, {"asynchrony": ALL_AT_ONCE})
    )
    for name, value in there.model().items():
        assert torch.equal(value, here.model()[name])
    assert here.state.server.seconds == pytest.approx(there.state.server.seconds, rel=1e-12)


@pytest.mark.parametrize("participation", [{"kind": "full"}, {"kind": "uniform", "clients_per_round": 3}])
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_one_tier_is_the_synchronous_run(engine: str, participation: Document) -> None:
    """To the bit, as above; the paper's aggregation in a tier is that of FedAvg."""
    changes: Document = {
        "participation": {"weighting": "samples", **participation},
        "algorithm": {"server_lr": 1.0},
        "aggregator": {"kind": "norm_bounding", "radius": 0.5},
        "compression": {
            "uplink": {"kind": "qsgd"},
            "downlink": {"kind": "top_k", "ratio": 0.2, "error_feedback": True},
        },
        "execution": {"engine": engine},
    }
    there, here = (
        runs.finished(specification(TIMED_SYNTHETIC, **changes, **more), 3)
        for more in ({}, {"asynchrony": {"kind": "fedat", "tiers": 1}})
    )
    for name, value in there.model().items():
        assert torch.equal(value, here.model()[name])
    assert here.state.server.seconds == pytest.approx(there.state.server.seconds, rel=1e-12)


def test_a_tier_draws_its_own_clients_anew_in_every_round() -> None:
    """Eight clients in three tiers, two of each at a time: no tier trains those of another."""
    simulation = Simulation(specification(CASES["tiers"], rounds=20, execution={"engine": "reference"}), 0)
    drawn: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    while not simulation.finished:
        simulation.advance()
        queue = simulation.state.server.own["arrivals"]
        assert queue is not None
        assert queue.tiers is not None
        assert sorted(np.bincount(queue.tiers.members)) == [2, 3, 3]
        for tier in {0, 1, 2} - set(queue.idle_tiers()):
            cohort = {flight.client for flight in queue.flights} & set(queue.tiers.clients(tier).tolist())
            assert len(cohort) == 2
            drawn[tier] |= cohort
    assert {tier: len(clients) for tier, clients in drawn.items()} == {0: 3, 1: 3, 2: 2}


def test_equal_devices_take_turns_without_staleness() -> None:
    spec = specification(
        TIMED,
        systems={"devices": {**EQUAL, "latency_seconds": None}, "steps": {"values": [6, 6, 6, 6]}},
        asynchrony={"kind": "fedbuff", "concurrency": 2, "buffer": 2},
    )
    reports = list(run(spec))
    assert [report.extra["max_staleness"] for report in reports] == [0.0] * 12
    assert [report.extra["concurrency"] for report in reports] == [2.0] * 12
    times = [report.extra["simulated_seconds"] for report in reports]
    np.testing.assert_allclose(times, 1.5 * np.arange(1, 13), rtol=1e-12)


def test_staleness_weights() -> None:
    staleness = np.array([0, 1, 3, 8])
    np.testing.assert_allclose(
        PolynomialStaleness(kind="polynomial", a=0.5).factors(staleness), [1, 0.5**0.5, 0.5, 1 / 3]
    )
    np.testing.assert_allclose(HingeStaleness(kind="hinge", a=2, b=3).factors(staleness), [1, 1, 1, 1 / 11])


@given(
    concurrency=st.integers(1, 9),
    buffer=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    instants=st.booleans(),
)
def test_event_queue_keeps_its_invariants(concurrency: int, buffer: int, seed: int, instants: bool) -> None:
    """On nine clients, whose work takes any time, or often no time at all."""
    durations = np.random.default_rng(seed)
    asynchrony = FedBuff(kind="fedbuff", concurrency=concurrency, buffer=buffer)
    started: list[tuple[int, int]] = []
    queue, model = EventQueue(), torch.zeros(1)

    def plan(version: int, clients: NDArray[np.int64]) -> Planned:
        started.extend((int(client), version) for client in clients)
        seconds = durations.integers(0, 2, len(clients)) if instants else durations.random(len(clients))
        return Planned([Work(1, 1)] * len(clients), seconds.astype(float))

    for version in range(12):
        queue = queue.with_version(version, model, None)
        arrived = await_arrivals(queue, asynchrony, version, 9, seed, partial(plan, version))
        came = [flight.client for flight in arrived.flights]
        assert len(set(came)) == len(came) == buffer
        left = [flight.client for flight in arrived.queue.flights]
        assert len(set(left)) == len(left) <= concurrency
        assert arrived.seconds >= 0
        assert 0 < arrived.busy <= concurrency + 1e-9
        assert [flight.finishes for flight in arrived.flights] == sorted(
            flight.finishes for flight in arrived.flights
        )
        assert arrived.flights[-1].finishes == arrived.queue.now
        assert all((flight.client, flight.version) in started for flight in arrived.flights)
        queue = arrived.queue.without_unused()
        assert set(queue.models) == {flight.version for flight in queue.flights}
    assert len(started) == len(set(started))
    assert len(started) == queue.dispatches == 12 * buffer + len(queue.flights)


@pytest.mark.parametrize("taken", [[], [0, 1], [4, 2, 0], [4]])
def test_further_clients_are_drawn_uniformly_from_those_not_taken(taken: list[int]) -> None:
    ids, counts = np.array(taken, np.int64), np.zeros(5)
    for trial in range(2_000):
        drawn = draw_others(ids, 2, 5, generator(0, "test", trial))
        assert len(set(drawn.tolist())) == 2
        counts[drawn] += 1
    free = 5 - len(taken)
    expected = np.where(np.isin(np.arange(5), ids), 0, 2_000 * 2 / free)
    # Five deviations.
    assert (np.abs(counts - expected) <= 5 * np.sqrt(2_000 * 2 / free)).all()
    assert (counts[ids] == 0).all()
    assert sorted(draw_others(ids, 9, 5, generator(0, "test")).tolist()) == sorted(set(range(5)) - set(taken))


def test_further_clients_are_drawn_from_those_that_can_be_reached() -> None:
    """Among few by looking at all, among many by drawing blindly first."""
    reachable = TraceAvailable(np.array([0, 2, 3, 4, 6]))
    counts = np.zeros(8)
    for trial in range(2_000):
        drawn = draw_others(np.array([3, 7]), 2, 8, generator(0, "test", trial), reachable)
        counts[drawn] += 1
    expected = np.where(np.isin(np.arange(8), [0, 2, 4, 6]), 1_000, 0)
    assert (np.abs(counts - expected) <= 5 * np.sqrt(1_000)).all()
    assert sorted(draw_others(np.array([3]), 9, 8, generator(0, "test"), reachable).tolist()) == [0, 2, 4, 6]
    many = RandomlyAvailable(0.5, 20_000, seed=3, round=1)
    assert many.oversample_size(10) is not None
    taken = np.arange(10_000)
    drawn = draw_others(taken, 10, 20_000, generator(0, "test"), many)
    assert len(set(drawn.tolist())) == 10
    assert many.has(drawn).all()
    assert (drawn >= 10_000).all()


class Hours:
    """Availability by a list of the seconds from which, and until which, each client can be reached."""

    def __init__(self, *hours: tuple[float, float], wait: float) -> None:
        self.hours, self.wait = np.array(hours), wait

    def empty_round_seconds(self) -> float:
        return self.wait

    def reachable_at(self, seconds: float, population: int, seed: int, round: int) -> Reachable:
        return TraceAvailable(np.flatnonzero((self.hours[:, 0] <= seconds) & (seconds < self.hours[:, 1])))


ALWAYS = (0.0, np.inf)
DURATIONS = np.array([2.0, 3.0])


def lasting(clients: NDArray[np.int64]) -> Planned:
    return Planned([Work(1, 1)] * len(clients), DURATIONS[clients])


def steps_of(hours: Hours, count: int) -> list[Arrivals]:
    """Steps of two clients at a time, each taking one arrival."""
    asynchrony = FedBuff(kind="fedbuff", concurrency=2, buffer=1)
    queue = EventQueue()
    found: list[Arrivals] = []
    for version in range(count):
        queue = queue.with_version(version, torch.zeros(1), None)
        found.append(await_arrivals(queue, asynchrony, version, 2, 0, lasting, hours))
        queue = found[-1].queue
    return found


def test_a_client_starts_once_it_can_be_reached_and_finishes_what_it_started() -> None:
    """Client 0 takes 2 s and can always be reached; client 1 takes 3 s, and can be reached in the sixth
    second only, at the end of which it has not finished. The server looks for it every second.
    """
    steps = steps_of(Hours(ALWAYS, (5.0, 6.0), wait=1.0), 5)
    assert [[(flight.client, flight.version) for flight in step.flights] for step in steps] == [
        [(0, 0)],
        [(0, 1)],
        [(0, 2)],
        [(1, 2)],  # It started before client 0, which arrives at the same moment.
        [(0, 3)],
    ]
    assert [step.queue.now for step in steps] == [2.0, 4.0, 6.0, 8.0, 8.0]
    assert [step.busy for step in steps] == [1.0, 1.0, 1.5, 2.0, 1.0]


def test_the_clock_goes_on_while_nobody_can_be_reached() -> None:
    """The server looks after 0, 4, 8 and 12 seconds."""
    (step,) = steps_of(Hours((10.0, 20.0), (30.0, 40.0), wait=4.0), 1)
    assert [flight.client for flight in step.flights] == [0]
    assert step.seconds == step.queue.now == 14.0
    assert step.busy == pytest.approx(2 / 14)


def test_a_run_fails_if_nobody_can_be_reached_for_ever() -> None:
    with pytest.raises(
        SpecificationError, match="no client could be started in 20000 waits of 60"
    ) as failure:
        steps_of(Hours((0.0, 0.0), (0.0, 0.0), wait=60.0), 1)
    assert failure.value.pointer == "/systems/availability"


def test_a_tier_starts_once_one_of_its_clients_can_be_reached() -> None:
    """As above, with a tier of each client; where both end at once, the faster tier comes first."""
    hours = Hours(ALWAYS, (5.0, 6.0), wait=1.0)
    tiers = Tiers.by_latency(DURATIONS, 2, torch.zeros(1), None)
    queue = EventQueue(tiers=tiers)
    steps: list[Arrivals] = []

    def draw_cohorts(idle: Sequence[int], seconds: float) -> NDArray[np.int64]:
        reachable = hours.reachable_at(seconds, 2, 0, 0)
        return np.concatenate([members[reachable.has(members)] for members in map(tiers.clients, idle)])

    for version in range(5):
        steps.append(await_tier(queue, version, draw_cohorts, lasting, hours.wait))
        queue = steps[-1].queue
    assert [[(flight.client, flight.version) for flight in step.flights] for step in steps] == [
        [(0, 0)],
        [(0, 1)],
        [(0, 2)],
        [(0, 3)],
        [(1, 2)],
    ]
    assert [step.queue.now for step in steps] == [2.0, 4.0, 6.0, 8.0, 8.0]
    assert [step.busy for step in steps[:4]] == [1.0, 1.0, 1.5, 2.0]


MIXED: Document = {"kind": "fedbuff", "concurrency": 5, "buffer": 3}
CNN = merged(
    DIGITS_CNN,
    {
        "algorithm": {"kind": "fedprox", "mu": 0.1},
        "rounds": 4,
        "systems": {"devices": {"steps_per_second": {"kind": "per_client", "values": SPEEDS}}},
        "asynchrony": {"kind": "fedbuff", "concurrency": 3, "buffer": 2},
    },
)
BY_DAY: Document = {
    "availability": {
        "kind": "diurnal",
        "low": 0.1,
        "high": 0.6,
        "session_seconds": 0.5,
        "period_seconds": 4.0,
        "wait_seconds": 0.2,
    }
}
CASES: dict[str, Document] = {
    "fedbuff": merged(TIMED_SYNTHETIC, {"asynchrony": MIXED, "rounds": 6}),
    "fedasync": merged(
        TIMED_SYNTHETIC,
        {
            "algorithm": {"kind": "fedprox"},
            "participation": {"weighting": None},
            "asynchrony": {"kind": "fedasync", "concurrency": 3},
            "rounds": 8,
        },
    ),
    "momentum, adaptive and compressed": merged(
        TIMED_SYNTHETIC,
        {
            "algorithm": {"kind": "fedprox", "mu": 0.1, "adaptive": True},
            "server": {"kind": "adam", "lr": 0.05},
            "local": {"optimizer": {"momentum": 0.9}},
            "compression": {
                "uplink": {"kind": "top_k", "ratio": 0.2, "error_feedback": True},
                "downlink": {"kind": "rand_k", "ratio": 0.5},
            },
            "asynchrony": MIXED,
            "rounds": 6,
        },
    ),
    "attacked, with a median": merged(
        TIMED_SYNTHETIC,
        {
            "systems": {"attack": {"kind": "gaussian_noise", "share": 0.3}},
            "aggregator": {"kind": "centred_clipping", "radius": 0.5},
            "asynchrony": MIXED,
            "rounds": 6,
        },
    ),
    "normalised averaging": merged(TIMED_SYNTHETIC, {"algorithm": {"kind": "fednova"}, "asynchrony": MIXED}),
    "noise": merged(
        TIMED,
        {
            "problem": {"dataset": {"gradient_noise": 0.1}},
            "asynchrony": {"kind": "fedbuff", "concurrency": 3, "buffer": 2},
        },
    ),
    "tiers": merged(
        TIMED_SYNTHETIC,
        {
            "algorithm": {"kind": "fedprox", "server_lr": 1.0},
            "participation": {"kind": "uniform", "clients_per_round": 2, "weighting": "samples"},
            "compression": {
                "uplink": {"kind": "top_k", "ratio": 0.2, "error_feedback": True},
                "downlink": {"kind": "top_k", "ratio": 0.5, "error_feedback": True},
            },
            "asynchrony": {"kind": "fedat", "tiers": 3},
            "rounds": 8,
        },
    ),
    "by time of day": merged(TIMED_SYNTHETIC, {"systems": BY_DAY, "asynchrony": MIXED, "rounds": 6}),
    "tiers by time of day": merged(
        TIMED_SYNTHETIC,
        {
            "algorithm": {"kind": "fedprox", "server_lr": 1.0},
            "participation": {"kind": "uniform", "clients_per_round": 2, "weighting": "samples"},
            "systems": BY_DAY,
            "asynchrony": {"kind": "fedat", "tiers": 3},
            "rounds": 8,
        },
    ),
    "tiers with batch norm": merged(
        CNN,
        {
            "problem": {"model": {"kind": "import"}},
            "asynchrony": {"kind": "fedat", "tiers": 2},
        },
    ),
    "batch norm": merged(CNN, {"problem": {"model": {"kind": "import"}}}),
    "own batch norm": merged(CNN, {"problem": {"model": {"kind": "import"}}}),
}
for _name, _policy in (
    ("batch norm", "average"),
    ("own batch norm", "local"),
    ("tiers with batch norm", "average"),
):
    CASES[_name]["problem"]["model"] = {
        "kind": "import",
        "path": "tests.models.factories:normalised_and_dropped",
        "parameters": 352 - 20 * (_policy == "local"),
        "batch_norm": _policy,
    }


def case(name: str, **changes: Any) -> ExperimentSpec:
    return specification(CASES[name], **changes)


@pytest.mark.parametrize("name", CASES)
def test_the_engines_agree(name: str) -> None:
    runs.engines_agree(partial(case, name))


@pytest.mark.parametrize("name", CASES)
def test_a_run_resumed_at_any_step_ends_bit_identical(name: str) -> None:
    runs.resumes_at_every_round(partial(case, name))


@pytest.mark.parametrize("name", ["fedbuff", "tiers"])
def test_a_client_has_the_mini_batches_of_the_step_in_which_it_started(name: str) -> None:
    """However long its update takes to arrive."""
    simulation, late = Simulation(case(name), seed=3), 0
    while not simulation.finished:
        opened = simulation.begin()
        flow, work = opened.flow, opened.flow.work
        assert work is not None
        rounds = {row: start.round for start in flow.starts for row in start.rows.tolist()}
        starts = [rounds[row] for row in range(len(work.clients))]
        samples = flow.context.problem.sizes[work.clients].tolist()
        members = zip(work.clients.tolist(), starts, samples, work.batches, strict=True)
        for client, start, count, batches in members:
            planned = Work(*batches.shape)
            assert np.array_equal(batches, mini_batches(3, start, client, count, planned))
        late += sum(start < flow.number for start in starts)
        simulation.end(opened, *train_cohorts([opened]))
    assert late


@pytest.mark.parametrize("alpha", [0.25, 0.75])
def test_running_statistics_move_by_the_weight_of_what_arrived(alpha: float) -> None:
    """s <- s + alpha (t - s), where t are those of the one client that arrived, as the model does."""

    def models(weight: float) -> list[dict[str, torch.Tensor]]:
        """Before and after the first step."""
        asynchrony = {"kind": "fedasync", "concurrency": 1, "alpha": weight}
        simulation = Simulation(specification({**CASES["batch norm"], "asynchrony": asynchrony}), seed=0)
        first = simulation.model()
        simulation.advance()
        return [first, simulation.model()]

    (start, whole), (_, part) = models(1.0), models(alpha)
    statistics = [name for name in start if "running" in name]
    assert not all(torch.equal(start[name], whole[name]) for name in statistics)
    for name in statistics:
        torch.testing.assert_close(part[name], start[name] + alpha * (whole[name] - start[name]))


@pytest.mark.parametrize("name", ["fedbuff", "fedasync", "tiers"])
def test_clients_that_can_always_be_reached_make_the_run_without_availability(name: str) -> None:
    always = {"kind": "diurnal", "low": 1.0, "high": 1.0, "session_seconds": 600.0}
    expected = runs.finished(case(name), 3)
    found = runs.finished(case(name, systems={"availability": always}), 3)
    for parameter, value in expected.model().items():
        assert torch.equal(found.model()[parameter], value)
    assert found.state.server.seconds == expected.state.server.seconds


@pytest.mark.parametrize(
    "asynchrony", [MIXED | {"buffer": 2, "concurrency": 4}, {"kind": "fedat", "tiers": 2}]
)
def test_clients_of_a_run_are_started_while_they_can_be_reached(asynchrony: Document) -> None:
    spec = specification(
        TIMED,
        asynchrony=asynchrony,
        systems=BY_DAY,
        rounds=30,
        evaluation={"measures": ["concurrency", "idle_share"]},
    )
    simulation, started = Simulation(spec, 0), 0
    reports: list[RoundReport] = []
    available = spec.systems.availability
    assert available is not None
    while not simulation.finished:
        reports.append(simulation.advance())
        queue = simulation.state.server.own["arrivals"]
        assert queue is not None
        for flight in queue.flights:
            began = flight.finishes - SECONDS[flight.client]
            assert available.reachable_at(began, 4, 0, 1).has(np.array([flight.client])).all()
            started += 1
    assert started > 0
    assert 0 < min(numbers(reports, "concurrency")) < 2


@pytest.mark.parametrize("engine", ["reference", "parallel", "vectorised", "compiled"])
def test_runs_come_out_of_a_batch_as_they_do_alone(engine: str) -> None:
    """Asynchronous ones beside synchronous ones."""
    if engine == "compiled":
        pytest.importorskip("fedcore.engine.accelerated.compiled")
    specs = [
        case("fedbuff", execution={"engine": engine}),
        case("fedbuff", execution={"engine": engine}, asynchrony={"staleness": {"kind": "constant"}}),
        specification(TIMED_SYNTHETIC, execution={"engine": engine}),
        case("fedasync", execution={"engine": engine}),
    ]
    members = [Simulation(spec, seed) for seed, spec in enumerate(specs)]
    while left := [member for member in members if not member.finished]:
        advance_batch(left)
    for member in members:
        alone = runs.finished(member.spec, member.seed)
        for name, value in alone.model().items():
            atol = 1e-10 if engine == "vectorised" else 0.0
            torch.testing.assert_close(member.model()[name], value, rtol=0, atol=atol)


def test_bytes_are_counted_down_at_the_start_and_up_at_the_arrival() -> None:
    asynchrony = {"kind": "fedbuff", "concurrency": 3, "buffer": 2}
    reports = list(run(specification(TIMED, asynchrony=asynchrony)))
    model = 3 * 8
    assert {report.bytes_up for report in reports} == {2 * model}
    assert sum(report.bytes_down for report in reports) == model * (2 * 12 + 2)
    # Three at first, and one more when the first of them waits for the second.
    assert reports[0].bytes_down == 4 * model


def test_the_idle_share_of_a_synchronous_round_is_the_wait_for_the_slowest() -> None:
    spec = specification(
        TIMED,
        systems={"steps": {"values": [1, 2, 4, 8]}, "devices": {**EQUAL, "latency_seconds": None}},
        evaluation={"measures": ["concurrency", "idle_share"]},
    )
    for report in list(run(spec)):
        assert report.extra["concurrency"] == pytest.approx((1 + 2 + 4 + 8) / 8)
        assert report.extra["idle_share"] == pytest.approx(1 - 15 / 32)


def test_time_does_not_go_back() -> None:
    reports = list(run(case("fedbuff", rounds=20)))
    times = numbers(reports, "simulated_seconds")
    assert all(before <= after for before, after in pairwise(times))


REJECTED: dict[str, tuple[Document, str]] = {
    "no clock": ({"systems": {"devices": None}}, "/systems/devices"),
    "a deadline": (
        {"systems": {"deadline": {"seconds": 1, "policy": "drop"}}},
        "/systems/deadline",
    ),
    "stragglers": ({"systems": {"stragglers": {"fraction": 0.5, "policy": "drop"}}}, "/systems/stragglers"),
    "availability": (
        {"systems": {"availability": {"kind": "bernoulli", "probability": 0.5}}},
        "/systems/availability",
    ),
    "availability by lists": (
        {"systems": {"availability": {"kind": "trace", "rounds": [[0, 1, 2, 3]]}}},
        "/systems/availability",
    ),
    "a cohort": ({"participation": {"kind": "uniform", "clients_per_round": 2}}, "/participation"),
    "unknown odds": (
        {"participation": {"kind": "full", "weighting": "unbiased"}},
        "/participation/weighting",
    ),
    "control variates": ({"algorithm": {"kind": "scaffold"}}, "/algorithm"),
    "an exchange of gradients": ({"algorithm": {"kind": "fedlin"}}, "/algorithm"),
    "an exact average": ({"algorithm": {"kind": "feddyn"}}, "/algorithm"),
    "weights of its own": ({"algorithm": {"kind": "fedaware"}}, "/algorithm"),
    "losses at one model": ({"algorithm": {"kind": "qfedavg"}}, "/algorithm"),
    "more at work than there are": ({"asynchrony": {"concurrency": 5}}, "/asynchrony/concurrency"),
    "more places than clients": ({"asynchrony": {"buffer": 5}}, "/asynchrony/buffer"),
    "two mixtures": (
        {"asynchrony": {"kind": "fedasync", "concurrency": 2}, "server": {"kind": "adam"}},
        "/server",
    ),
    "a step size beside alpha": (
        {"asynchrony": {"kind": "fedasync", "concurrency": 2}, "algorithm": {"server_lr": 0.5}},
        "/algorithm",
    ),
    "a median of one": (
        {"asynchrony": {"kind": "fedasync", "concurrency": 2}, "aggregator": {"kind": "median"}},
        "/aggregator",
    ),
    "normalised averaging of one": (
        {"asynchrony": {"kind": "fedasync", "concurrency": 2}, "algorithm": {"kind": "fednova"}},
        "/algorithm",
    ),
    "more tiers than clients": ({"asynchrony": {"kind": "fedat", "tiers": 5}}, "/asynchrony/tiers"),
    "tiers drawn by chance": (
        {
            "asynchrony": {"kind": "fedat", "tiers": 2},
            "participation": {"kind": "bernoulli", "probability": 0.5},
        },
        "/participation",
    ),
    "a step size beside tiers": (
        {"asynchrony": {"kind": "fedat", "tiers": 2}, "algorithm": {"server_lr": 0.5}},
        "/algorithm",
    ),
    "weights of one": (
        {
            "asynchrony": {"kind": "fedasync", "concurrency": 2},
            "participation": {"kind": "full", "weighting": "samples"},
        },
        "/participation/weighting",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_combinations_without_meaning_are_rejected_with_the_field(name: str) -> None:
    changes, pointer = REJECTED[name]
    base = merged(TIMED, {"asynchrony": {"kind": "fedbuff", "concurrency": 2, "buffer": 2}})
    specification(base)
    with pytest.raises(SpecificationError) as caught:
        specification(base, **changes)
    assert caught.value.pointer == pointer
