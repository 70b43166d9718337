"""Availability on the simulated clock: FedScale's traces by the definition of their format, and the
diurnal model by its probabilities.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore import RoundReport, Simulation
from fedcore.errors import DataUnavailableError, SpecificationError
from fedcore.spec import ExperimentSpec
from fedcore.systems.availability import AvailabilityData, DiurnalAvailability, LoadedTrace, TimedTrace
from tests.builders.specifications import QUADRATIC, Document, specification

FEDSCALES_OWN: Document = {"active": [1, 3, 6, 9], "inactive": [1, 4, 7, 10], "finish_time": 10}
"""Of the unit tests of FedScale's ClientMetadata.is_active."""
DEVICES = {
    "7": FEDSCALES_OWN | {"duration": 4, "model": "phone"},
    "9": {"active": [50.0, 0.0], "inactive": [60.0, 30.5], "finish_time": 100},
    "11": {"active": [], "inactive": [], "finish_time": 8},
    "13": {"active": [5, 6], "inactive": [40, 7], "finish_time": 50},
}
TRACE: Document = {"kind": "timed_trace", "file": "behaviour", "wait_seconds": 7.0}
EQUAL: Document = {"steps_per_second": {"kind": "constant", "value": 1.0}}


def load(folder: Path, devices: Any) -> AvailabilityData:
    (folder / "behaviour").write_text(json.dumps(devices))
    return TimedTrace.model_validate(TRACE).load(folder)


def there(data: AvailabilityData, seconds: float, clients: int = 1) -> list[int]:
    return data.reachable_at(seconds, clients, seed=0, round=1).all().tolist()


def test_a_device_is_there_when_fedscale_says_so(tmp_path: Path) -> None:
    data = load(tmp_path, {"1": FEDSCALES_OWN})
    said = {2: False, 6: True, 8: False, 9: True, 10: False, 15: False}
    assert {second: bool(there(data, second)) for second in said} == said


def test_devices_are_there_in_their_intervals_and_periods(tmp_path: Path) -> None:
    """By the definition, written out; an interval may be within another, in any order, or absent."""
    data = load(tmp_path, DEVICES)
    assert isinstance(data, LoadedTrace)
    for moment in (*np.arange(0, 120, 0.5), 100_030.5, 100_030.75):
        expected = [
            any(
                start <= moment % device["finish_time"] <= end
                for start, end in zip(device["active"], device["inactive"], strict=True)
            )
            for device in DEVICES.values()
        ]
        assert data.intervals.reached(moment).tolist() == expected


def test_each_client_has_one_of_the_devices_whoever_else_is_there(tmp_path: Path) -> None:
    """The third device is never there, and the others are at second 6."""
    data = load(tmp_path, DEVICES)
    together = there(data, 6.0, 4_000)
    assert len(together) / 4_000 == pytest.approx(3 / 4, abs=0.03)
    assert there(data, 6.0, 1_000) == [client for client in together if client < 1_000]
    assert there(data, 6.0 + 5 * 1_000, 4_000) == together


def test_asking_of_some_is_asking_of_all(tmp_path: Path) -> None:
    day = DiurnalAvailability.model_validate(
        {"kind": "diurnal", "low": 0.2, "high": 0.7, "session_seconds": 500}
    )
    for data in (load(tmp_path, DEVICES), day):
        reachable = data.reachable_at(21.0, 1_000, seed=3, round=2)
        clients = np.random.default_rng(0).permutation(1_000)
        np.testing.assert_array_equal(reachable.has(clients), np.isin(clients, reachable.all()))


def timed(availability: Document, **systems: Any) -> ExperimentSpec:
    more = {"availability": availability, "devices": EQUAL, "steps": None, **systems}
    return specification(QUADRATIC, systems=more, local={"steps": 2}, rounds=6)


def reports(spec: ExperimentSpec, folder: Path) -> list[RoundReport]:
    simulation = Simulation(spec, 0, data_dir=folder)
    return [simulation.advance() for _ in range(spec.rounds)]


def test_rounds_begin_with_those_who_are_there_and_wait_if_nobody_is(tmp_path: Path) -> None:
    """All devices are there in seconds 0 to 1 and 10 to 12 of 20. Rounds take 2 s, or wait for 7 s."""
    load(tmp_path, {"1": {"active": [0, 10], "inactive": [1, 12], "finish_time": 20}})
    rows = reports(timed(TRACE), tmp_path)
    assert [row.extra["simulated_seconds"] for row in rows] == [2, 9, 16, 23, 30, 32]
    assert [row.local_steps for row in rows] == [8, 0, 0, 0, 0, 8]


def test_a_deadline_limits_rounds_without_clients(tmp_path: Path) -> None:
    load(tmp_path, {"1": {"active": [4], "inactive": [8], "finish_time": 20}})
    rows = reports(timed(TRACE, deadline={"seconds": 3.0, "policy": "drop"}), tmp_path)
    assert [row.extra["simulated_seconds"] for row in rows] == [3, 6, 8, 10, 13, 16]


def test_a_resumed_run_continues_at_the_same_time_of_day(tmp_path: Path) -> None:
    load(tmp_path, DEVICES)
    spec = timed(TRACE)
    whole = Simulation(spec, 1, data_dir=tmp_path)
    for _ in range(3):
        whole.advance()
    resumed = Simulation(spec, 1, data_dir=tmp_path)
    resumed.restore(whole.checkpoint())
    left = [[run.advance().extra for _ in range(3)] for run in (whole, resumed)]
    assert left[0] == left[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no trace", "is not an availability trace in JSON .*convert FedScale's pickle"),
        ("{}", "give a dictionary of devices, each with active, inactive and finish_time"),
        ('{"7": {"active": [1], "inactive": [], "finish_time": 5}}', "device '7' needs .* an end for every"),
        ('{"7": {"active": [1], "inactive": [2], "finish_time": 0}}', "device '7' needs a positive"),
        ('{"7": {"active": [[1]], "inactive": [[2]], "finish_time": 5}}', "device '7' needs"),
        ('{"7": {"active": [NaN], "inactive": [2], "finish_time": 5}}', "device '7' needs"),
    ],
)
def test_malformed_traces_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "behaviour").write_text(content)
    with pytest.raises(DataUnavailableError, match=message):
        TimedTrace.model_validate(TRACE).load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=r"trace of `systems.availability` cannot be read"):
        Simulation(timed(TRACE), 0, data_dir=tmp_path)


DAY = {"kind": "diurnal", "low": 0.1, "high": 0.4, "session_seconds": 600.0, "peak_seconds": 7_200.0}


def test_clients_are_there_with_the_probability_of_the_time_of_day() -> None:
    """Four times as many at the best time as at the worst, as Bonawitz et al. observed, and half-way
    between at a quarter of the day.
    """
    day, many = DiurnalAvailability.model_validate(DAY), 40_000
    for seconds, expected in ((7_200, 0.4), (7_200 + 43_200, 0.1), (7_200 + 21_600, 0.25), (93_600, 0.4)):
        share = len(day.reachable_at(seconds, many, seed=2, round=1).all()) / many
        assert share == pytest.approx(expected, abs=5 * np.sqrt(expected * (1 - expected) / many))


def test_clients_stay_for_a_session() -> None:
    """At a constant probability p, the share that is as it was d seconds ago is, with D of a session,
    1 - 2 p (1 - p) min(d / D, 1).
    """
    day = DiurnalAvailability.model_validate(DAY | {"low": 0.3, "high": 0.3})
    everyone = np.arange(40_000)
    before = day.reachable_at(50_000.0, len(everyone), seed=2, round=1).has(everyone)
    for later in (0.0, 150.0, 450.0, 600.0, 5_000.0):
        after = day.reachable_at(50_000.0 + later, len(everyone), seed=2, round=2).has(everyone)
        expected = 1 - 2 * 0.3 * 0.7 * min(later / 600, 1)
        assert (before == after).mean() == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize("availability", [TRACE, DAY])
def test_the_clock_is_needed(availability: Document) -> None:
    with pytest.raises(SpecificationError, match="simulated clock") as caught:
        specification(QUADRATIC, systems={"availability": availability})
    assert caught.value.pointer == "/systems/devices"


def test_the_worst_time_of_day_is_not_better_than_the_best() -> None:
    with pytest.raises(ValidationError, match=r"low \(0.5\) must not exceed high \(0.4\)"):
        DiurnalAvailability.model_validate(DAY | {"low": 0.5})
