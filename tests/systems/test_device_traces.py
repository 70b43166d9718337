"""Device traces in FedScale's format, against FedScale's own formula for the time of a client."""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedcore import Simulation
from fedcore.errors import DataUnavailableError
from fedcore.spec import ExperimentSpec
from fedcore.systems.clock import Devices
from fedcore.systems.device_traces import DeviceTrace, TraceFile
from tests.builders.specifications import QUADRATIC, Document, specification

DEVICES = {
    3: {"computation": 20.0, "communication": 4_000.0},
    5: {"computation": 50, "communication": 500.0},
    9: {"computation": 125.0, "communication": 12_000.0},
}
CONTENT = json.dumps(DEVICES).encode()
TRACE = {"file": "capacity", "samples_per_step": 4}


def read(folder: Path, content: bytes, **fields: Any) -> DeviceTrace:
    (folder / "capacity").write_bytes(content)
    return TraceFile.model_validate({**TRACE, **fields}).load(folder)


def spec(**systems: Any) -> ExperimentSpec:
    return specification(QUADRATIC, systems={"devices": {"trace": TRACE}, **systems})


def clock(simulation: Simulation) -> list[Any]:
    return [simulation.advance().extra["simulated_seconds"] for _ in range(3)]


@pytest.mark.parametrize("number", [float, str])
def test_figures_are_read_in_fedscales_units(tmp_path: Path, number: Any) -> None:
    """A step is 3 * 4 samples * 20 ms = 0.24 s; 4000 kbit/s are 4000 * 1024 / 8 bytes per second."""
    devices = {
        name: {field: number(value) for field, value in device.items()} for name, device in DEVICES.items()
    }
    trace = read(tmp_path, json.dumps(devices).encode())
    np.testing.assert_allclose(1 / trace.steps_per_second, [0.24, 0.6, 1.5], rtol=1e-14)
    np.testing.assert_array_equal(trace.bytes_per_second, [512_000, 64_000, 1_536_000])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(DEVICES), "is not a device trace in JSON .*convert FedScale's pickle"),
        (b"no trace", "is not a device trace"),
        (b"[]", "give a dictionary of devices, each with computation and communication"),
        (b"{}", "give a dictionary of devices"),
        (b'{"7": {"computation": 1}}', "device '7' has no positive `communication`"),
        (b'{"7": {"computation": 0, "communication": 1}}', "device '7' has no positive `computation`"),
        (b'{"7": {"computation": Infinity, "communication": 1}}', "no positive `computation`"),
        (b'{"7": {"computation": 1' + 400 * b"0" + b"}}", "no positive `computation`"),
        (b'{"7": {}, "7": {}}', "is not a device trace in JSON .*the key '7' stands twice"),
        (b'{"7": 3}', "device '7' has no positive `computation`"),
    ],
)
def test_another_file_is_refused_with_its_fault(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataUnavailableError, match=message):
        read(tmp_path, content)


def test_the_file_must_be_there_and_have_the_digest(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=r"`systems.devices.trace` cannot be read.*FEDQ_DATA_DIR"):
        Simulation(spec(), 0, data_dir=tmp_path)
    content = CONTENT
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    read(tmp_path, content, digest=digest)
    with pytest.raises(DataUnavailableError, match=r"not that of `systems.devices.trace.digest`"):
        read(tmp_path, content, digest="sha256:" + 64 * "0")


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    assert len(read(tmp_path, CONTENT).steps_per_second) == 3
    assert len(read(tmp_path, json.dumps({1: DEVICES[3]}).encode()).steps_per_second) == 1


def test_clients_keep_their_devices_whoever_else_is_there(tmp_path: Path) -> None:
    trace = read(tmp_path, CONTENT)
    together, other = (trace.rows(np.arange(3_000), seed) for seed in (0, 1))
    np.testing.assert_array_equal(together[[7, 2]], trace.rows(np.array([7, 2]), 0))
    assert (together != other).any()
    np.testing.assert_allclose(np.bincount(together) / 3_000, np.full(3, 1 / 3), atol=0.04)


def test_a_round_takes_as_long_as_fedscale_says(tmp_path: Path) -> None:
    """FedScale: 3 * batch * steps * ms / 1000 + (upload + download) kilobits / bandwidth, of the
    slowest. A model of 3 numbers in float64 has 24 bytes.
    """
    trace = read(tmp_path, CONTENT)
    drawn = [list(DEVICES.values())[row] for row in trace.rows(np.arange(4), 0)]
    kilobits = 24 / 1024 * 8
    each = [
        3 * 4 * steps * device["computation"] / 1000 + 2 * kilobits / device["communication"]
        for steps, device in zip([5, 1, 7, 3], drawn, strict=True)
    ]
    steps: Document = {"kind": "per_client", "values": [5, 1, 7, 3]}
    seconds = clock(Simulation(spec(steps=steps), 0, data_dir=tmp_path))
    np.testing.assert_allclose(seconds, max(each) * np.arange(1, 4), rtol=1e-12)


def test_a_resumed_run_continues_on_the_same_devices(tmp_path: Path) -> None:
    read(tmp_path, CONTENT)
    whole = Simulation(spec(), 1, data_dir=tmp_path)
    first, stored = clock(whole), whole.checkpoint()
    resumed = Simulation(spec(), 1, data_dir=tmp_path)
    resumed.restore(stored)
    assert clock(resumed) == clock(whole) != first


def test_asynchronous_rounds_take_place_on_the_trace(tmp_path: Path) -> None:
    """The first of all clients to be heard from is the one whose device is fastest."""
    trace = read(tmp_path, CONTENT)
    systems = {"devices": {"trace": TRACE}, "steps": {"kind": "per_client", "values": [2, 2, 2, 2]}}
    document = {**QUADRATIC, "systems": systems, "asynchrony": {"kind": "fedasync", "concurrency": 4}}
    first = Simulation(specification(document), 0, data_dir=tmp_path).advance()
    rows = trace.rows(np.arange(4), 0)
    expected = (2 / trace.steps_per_second + 2 * 24 / trace.bytes_per_second)[rows].min()
    assert first.extra["simulated_seconds"] == pytest.approx(expected, rel=1e-12)


def test_a_rate_is_given_once() -> None:
    with pytest.raises(ValidationError, match="`trace` gives upload_bytes_per_second of every device"):
        Devices.model_validate(
            {"trace": TRACE, "upload_bytes_per_second": {"kind": "constant", "value": 1.0}}
        )
