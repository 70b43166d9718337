"""The simulated clock against times worked out by hand, distributions of devices, and what a
deadline does to a round.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcore import Simulation, run
from fedcore.errors import SpecificationError
from fedcore.systems.clock import TOLERANCE, Deadline, Devices, DeviceSpeed, apply_deadline, device_speed
from fedcore.systems.work import Work
from tests.builders.specifications import EXACTLY, QUADRATIC, Document, specification

ALL = np.arange(4)


def devices(**fields: Any) -> Devices:
    return Devices.model_validate(fields)


def constant(value: float) -> Document:
    return {"kind": "constant", "value": value}


def paced(clients: np.ndarray = ALL, seed: int = 0, **fields: Any) -> DeviceSpeed:
    return device_speed(devices(**fields), clients, np.full(len(clients), 1_000), 500, 2, seed)


def test_a_round_is_computing_sending_and_waiting_twice() -> None:
    """0.1 s each way, 1000 bytes down at 1000/s, 500 up at 250/s, 8 steps at 4/s: 0.2 + 1 +
    2 + 2.
    """
    one = paced(
        steps_per_second=constant(4),
        download_bytes_per_second=constant(1_000),
        upload_bytes_per_second=constant(250),
        latency_seconds=constant(0.1),
    )
    np.testing.assert_allclose(one.seconds(np.array([8, 0, 4, 1])), [5.2, 3.2, 4.2, 3.45], rtol=1e-14)


def test_absent_parts_of_the_clock_take_no_time() -> None:
    np.testing.assert_array_equal(paced(steps_per_second=constant(2)).seconds(ALL), ALL / 2)
    np.testing.assert_array_equal(paced(latency_seconds=constant(3)).seconds(ALL), [6] * 4)


def test_figures_are_given_per_client() -> None:
    own = paced(np.array([3, 1]), steps_per_second={"kind": "per_client", "values": [1, 2, 4, 8]})
    np.testing.assert_array_equal(own.speed, [8, 2])


def test_a_client_keeps_its_device_whoever_else_is_there_and_seeds_differ() -> None:
    speed: Document = {"steps_per_second": {"kind": "log_normal", "median": 5, "sigma": 1}}
    together, alone, other = paced(**speed), paced(np.array([2]), **speed), paced(seed=1, **speed)
    assert together.speed[2] == alone.speed[0]
    assert not np.isin(together.speed, other.speed).any()
    assert len(set(together.speed)) == 4


def test_each_figure_has_draws_of_its_own() -> None:
    drawn = {"kind": "uniform", "low": 1, "high": 2}
    one = device_speed(
        devices(steps_per_second=drawn, latency_seconds=drawn), ALL, np.zeros(4, np.int64), 0, 2, 0
    )
    assert not np.isclose(one.speed, one.sending / 2).any()


def test_the_distributions_of_devices() -> None:
    clients = np.arange(4_000)
    uniform = paced(clients, steps_per_second={"kind": "uniform", "low": 2, "high": 6}).speed
    assert uniform.min() >= 2
    assert uniform.max() <= 6
    np.testing.assert_allclose([uniform.mean(), uniform.std()], [4, 4 / np.sqrt(12)], rtol=0.03)
    logarithms = np.log(
        paced(clients, steps_per_second={"kind": "log_normal", "median": 3, "sigma": 0.5}).speed
    )
    np.testing.assert_allclose([logarithms.mean(), logarithms.std()], [np.log(3), 0.5], rtol=0.03)


def held(
    deadline: Document | None, steps: list[int], arrives: list[bool] | None = None
) -> tuple[list[int], list[bool], float]:
    """A cohort whose clients take 1 s on the wire and 1, 2, 3, ... s a step."""
    cohort = DeviceSpeed(np.ones(len(steps)), 1 / np.arange(1.0, len(steps) + 1))
    chosen = None if deadline is None else Deadline.model_validate(deadline)
    work, reached, seconds = apply_deadline(
        chosen, cohort, [Work(count, 7) for count in steps], np.array(arrives or [True] * len(steps), bool)
    )
    assert {item.batch_size for item in work} <= {7}
    return [item.steps for item in work], reached.tolist(), seconds


def test_without_a_deadline_the_slowest_sets_the_pace() -> None:
    assert held(None, [5, 5, 1]) == ([5, 5, 1], [True] * 3, 11.0)


def test_a_round_ends_when_all_have_been_heard() -> None:
    assert held({"seconds": 50, "policy": "drop"}, [5, 5, 1]) == ([5, 5, 1], [True] * 3, 11.0)


def test_late_clients_are_dropped_and_have_been_waited_for() -> None:
    assert held({"seconds": 10, "policy": "drop"}, [5, 5, 1]) == ([5, 5, 1], [True, False, True], 10.0)


def test_the_deadline_itself_is_on_time() -> None:
    assert held({"seconds": 11, "policy": "drop"}, [5, 5, 1])[1] == [True] * 3


@pytest.mark.parametrize("policy", ["drop", "accept_partial"])
def test_work_that_takes_exactly_until_the_deadline_is_on_time(policy: Any) -> None:
    """All pairs of whole steps and steps per second up to 100, deadline as the decimal number that
    their quotient is.
    """
    steps, speeds = (grid.ravel() for grid in np.meshgrid(np.arange(1, 101), np.arange(1.0, 101)))
    for sending in (0.0, 0.1):
        for seconds in np.unique(steps / speeds)[::50]:
            pairs = steps / speeds == seconds
            cohort = DeviceSpeed(np.full(pairs.sum(), sending), speeds[pairs])
            planned = [Work(int(count), 1) for count in steps[pairs]]
            work, arrives, length = apply_deadline(
                Deadline(seconds=float(f"{seconds + sending:.12g}"), policy=policy),
                cohort,
                planned,
                np.ones(len(planned), bool),
            )
            assert arrives.all()
            assert work == planned
            assert length == pytest.approx(seconds + sending, rel=1e-9)


@pytest.mark.parametrize(
    ("steps", "speed", "seconds"), [(3, 10.0, 0.3), (7, 100.0, 0.07), (6, 10.0, 0.6), (57, 100.0, 0.57)]
)
def test_a_step_is_not_lost_to_rounding(steps: int, speed: float, seconds: float) -> None:
    """3 steps at 10 a second take 0.3 s, although 3 * 0.1 > 0.3 in floating point."""
    cohort, chosen = (
        DeviceSpeed(np.zeros(1), np.array([speed])),
        Deadline(seconds=seconds, policy="accept_partial"),
    )
    for planned in (steps, steps + 1):
        work, arrives, _ = apply_deadline(chosen, cohort, [Work(planned, 1)], np.ones(1, bool))
        assert ([item.steps for item in work], arrives.tolist()) == ([steps], [True])


def test_partial_work_is_what_fits() -> None:
    """Of 10 s, 9 are left for computing: 9 steps of 1 s, 4 of 2 s, 3 of 3 s, and none of 10 s."""
    steps, arrives, seconds = held({"seconds": 10, "policy": "accept_partial"}, [20, 20, 20] + [20] * 7)
    assert steps[:3] == [9, 4, 3]
    assert arrives == [True] * 9 + [False]
    assert seconds == 10.0


def test_partial_work_that_all_can_do_ends_the_round_with_the_last_step() -> None:
    assert held({"seconds": 9.5, "policy": "accept_partial"}, [20, 20]) == ([8, 4], [True, True], 9.0)


def test_clients_that_cannot_even_be_reached_in_time_are_left_out() -> None:
    for policy in ("drop", "accept_partial"):
        _, arrives, seconds = held({"seconds": 0.5, "policy": policy}, [1, 1])
        assert (arrives, seconds) == ([False, False], 0.5)


def test_infinitely_fast_devices_are_on_time_when_the_wire_is() -> None:
    work, arrives, seconds = apply_deadline(
        Deadline(seconds=1.0, policy="accept_partial"),
        DeviceSpeed(np.array([0.5, 1.0, 2.0]), np.full(3, np.inf)),
        [Work(3, 1)] * 3,
        np.ones(3, bool),
    )
    assert arrives.tolist() == [True, True, False]
    assert [item.steps for item in work[:2]] == [3, 3]
    assert seconds == 1.0


def test_stragglers_that_drop_out_are_waited_for_only_until_a_deadline() -> None:
    assert held(None, [5, 5], [True, False])[2] == 6.0
    assert held({"seconds": 50, "policy": "drop"}, [5, 5], [True, False])[2] == 50.0


def test_an_empty_cohort_takes_until_the_deadline_or_no_time() -> None:
    assert held({"seconds": 4, "policy": "drop"}, [])[2] == 4.0
    assert held(None, [])[2] == 0.0


@given(
    st.lists(st.tuples(st.floats(1e-3, 10), st.floats(1e-3, 10), st.integers(1, 50)), min_size=1, max_size=6),
    st.floats(1e-2, 100),
    st.sampled_from(["drop", "accept_partial"]),
)
def test_nobody_who_arrives_is_late_or_does_more_than_planned(
    cohort: list[tuple[float, float, int]], seconds: float, policy: Any
) -> None:
    sending, speed, steps = (np.array(column) for column in zip(*cohort, strict=True))
    rates = DeviceSpeed(sending, speed)
    work, arrives, length = apply_deadline(
        Deadline(seconds=seconds, policy=policy),
        rates,
        [Work(int(count), 3) for count in steps],
        np.ones(len(cohort), bool),
    )
    done = np.array([item.steps for item in work])
    assert (rates.seconds(done)[arrives] <= seconds * (1 + 1.001 * TOLERANCE)).all()
    assert ((done >= 1) & (done <= steps))[arrives].all()
    assert length <= seconds
    one_more = rates.seconds(done + 1)[arrives & (done < steps)]
    assert (one_more > seconds * (1 - 1e-12)).all()


CLOCKED: Document = {
    **QUADRATIC,
    "systems": {
        "steps": {"kind": "per_client", "values": [5, 1, 7, 3]},
        "devices": {"steps_per_second": constant(2), "latency_seconds": constant(0.25)},
    },
}


def test_every_row_carries_the_time_of_all_rounds_so_far() -> None:
    """Seven steps at two a second, and a quarter of a second each way."""
    assert [report.extra["simulated_seconds"] for report in run(specification(CLOCKED))] == pytest.approx(
        [4.0 * round for round in range(1, 9)]
    )


def test_bytes_take_time_in_their_direction() -> None:
    """Three numbers of eight bytes, down at 8 bytes a second and up at 24."""
    systems = {"devices": {"download_bytes_per_second": constant(8), "upload_bytes_per_second": constant(24)}}
    first = next(run(specification(QUADRATIC, systems=systems)))
    assert first.extra["simulated_seconds"] == pytest.approx(4.0)


def test_compression_saves_time() -> None:
    sparse = {"kind": "top_k", "k": 1, "error_feedback": False}
    systems = {"devices": {"upload_bytes_per_second": constant(12)}}
    *_, last = run(specification(QUADRATIC, systems=systems, compression={"uplink": sparse}))
    assert last.extra["simulated_seconds"] == pytest.approx(8 * 1.0)


def test_without_devices_there_is_no_clock() -> None:
    assert all("simulated_seconds" not in report.extra for report in run(specification(QUADRATIC)))


def test_a_deadline_drops_the_slow_from_the_aggregate() -> None:
    """Clients 0 and 2 need more than two seconds for their steps: what remains is the cohort of 1
    and 3.
    """
    late = specification(CLOCKED, systems={"deadline": {"seconds": 2.25, "policy": "drop"}})
    without = specification(QUADRATIC, participation={"kind": "trace", "rounds": [[1, 3]] * 8})
    for dropped, expected in zip(run(late), run(without), strict=True):
        assert dropped.extra["x"] == expected.extra["x"]
        assert (dropped.local_steps, dropped.bytes_up) == (expected.local_steps, expected.bytes_up)
        assert dropped.extra["simulated_seconds"] == pytest.approx(2.25 * dropped.round)


def test_a_deadline_accepts_what_was_done_by_then() -> None:
    """1.75 seconds of computing at two steps a second are three steps."""
    cut = specification(CLOCKED, systems={"deadline": {"seconds": 2.25, "policy": "accept_partial"}})
    given_ = specification(QUADRATIC, systems={"steps": {"kind": "per_client", "values": [3, 1, 3, 3]}})
    for partial, expected in zip(run(cut), run(given_), strict=True):
        assert partial.extra["x"] == expected.extra["x"]
        assert partial.extra["simulated_seconds"] == pytest.approx(2.0 * partial.round)


def test_a_deadline_nobody_meets_leaves_the_model() -> None:
    spec = specification(CLOCKED, systems={"deadline": {"seconds": 0.1, "policy": "accept_partial"}})
    reports = list(run(spec))
    assert {tuple(report.extra["x"]) for report in reports} == {(1.0, -2.0, 0.5)}  # type: ignore[arg-type]
    assert reports[-1].extra["simulated_seconds"] == pytest.approx(0.8)
    assert reports[-1].local_steps == 0


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_the_clock_goes_on_where_a_checkpoint_stopped_it(engine: str) -> None:
    drawn = {
        "devices": {"steps_per_second": {"kind": "log_normal", "median": 2, "sigma": 1}},
        "deadline": {"seconds": 3, "policy": "drop"},
    }
    spec = specification(CLOCKED, systems=drawn, execution={"engine": engine})
    whole = [replace(report, seconds=0.0) for report in run(spec)]
    for done in range(1, 8):
        first, second = Simulation(spec, seed=0), Simulation(spec, seed=0)
        for _ in range(done):
            first.advance()
        second.restore(first.checkpoint())
        assert replace(second.advance(), seconds=0.0) == whole[done]


@pytest.mark.parametrize(
    ("systems", "pointer", "words"),
    [
        ({"deadline": {"seconds": 3, "policy": "drop"}}, "/systems/deadline", "give their speed"),
        (
            {"devices": {"latency_seconds": {"kind": "per_client", "values": [1, 2]}}},
            "/systems/devices/latency_seconds/values",
            "4 clients",
        ),
        ({"devices": {}}, "systems", "at least one of steps_per_second"),
        (
            {"devices": {"steps_per_second": {"kind": "uniform", "low": 2, "high": 1}}},
            "systems",
            "must not exceed high",
        ),
        ({"devices": {"steps_per_second": constant(0)}}, "systems", "greater than 0"),
        (
            {"devices": {"steps_per_second": constant(1)}, "deadline": {"seconds": 0, "policy": "drop"}},
            "systems",
            "greater than 0",
        ),
    ],
)
def test_clocks_that_do_not_fit_are_refused(systems: Document, pointer: str, words: str) -> None:
    with pytest.raises((ValidationError, SpecificationError), match=words) as refused:
        specification(QUADRATIC, systems=systems)
    assert pointer in str(refused.value)


@pytest.mark.parametrize("kind", EXACTLY)
def test_the_clock_waits_for_the_bytes_of_the_row(kind: str) -> None:
    """All clients at a byte a second, steps taking no time: a round lasts as long as a client's
    bytes in both directions.
    """
    rates = {"download_bytes_per_second": constant(1), "upload_bytes_per_second": constant(1)}
    sparse = {"uplink": {"kind": "top_k", "k": 1}, "downlink": {"kind": "sign"}}
    # Of pooled data nothing is sent, so nothing is compressed.
    for compression in ({}, *([] if kind == "pooled" else [sparse])):
        spec = specification(
            QUADRATIC,
            algorithm={"kind": kind},
            systems={"devices": rates},
            compression=compression,
            participation={"kind": "full"},
        )
        seconds = 0.0
        for report in run(spec):
            seconds += (report.bytes_up + report.bytes_down) / 4
            assert report.extra["simulated_seconds"] == pytest.approx(seconds, rel=1e-12)


def test_vrlsgds_downloads_take_the_time_that_those_of_fedavg_take() -> None:
    """24 bytes a model at 1 byte/s: FedAvg's rounds take 24 s.

    VRLSGD's too, after a first one with two models.
    """
    systems = {"devices": {"download_bytes_per_second": constant(1)}}
    clocks = [
        [
            report.extra["simulated_seconds"]
            for report in run(specification(QUADRATIC, algorithm={"kind": kind}, systems=systems, rounds=4))
        ]
        for kind in ("fedavg", "vrlsgd")
    ]
    assert clocks == [[24, 48, 72, 96], [48, 72, 96, 120]]


def test_every_message_waits_for_its_latency() -> None:
    """FedAvg sends down and up.

    FedLin exchanges gradients before; VRLSGD sends the next model at the end, and the first at
    first.
    """
    systems = {"devices": {"latency_seconds": constant(1)}}
    for kind, expected in (("fedavg", [2, 4]), ("fedlin", [4, 8]), ("vrlsgd", [3, 5])):
        reports = run(specification(QUADRATIC, algorithm={"kind": kind}, systems=systems, rounds=2))
        assert [report.extra["simulated_seconds"] for report in reports] == expected


def test_a_deadline_counts_the_model_that_vrlsgd_sends_at_the_end() -> None:
    systems = {
        "devices": {"download_bytes_per_second": constant(24)},
        "deadline": {"seconds": 1.5, "policy": "drop"},
    }
    first = next(run(specification(QUADRATIC, algorithm={"kind": "vrlsgd"}, systems=systems)))
    assert (first.local_steps, first.extra["simulated_seconds"]) == (0, 1.5)
