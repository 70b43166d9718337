"""Checkpoints: what was written is read back, and anything else is refused."""

import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fedcore import ExperimentSpec, Simulation
from fedcore.errors import CheckpointError
from fedcore.simulation import checkpoint
from tests.builders.specifications import QUADRATIC, SYNTHETIC, Document, specification

TENSORS = {
    "x": torch.tensor([1.5, -0.0, float("inf"), float("nan")]),
    "double": torch.tensor([[1 / 3, 5e-324]], dtype=torch.float64),
    "rounds": torch.tensor([-1, 2**62]),
    "nobody": torch.empty(0, 3),
    "scalar": torch.tensor(2.0),
}
MANIFEST: dict[str, Any] = {"run": "abc", "round": 7, "clock": 123, "diverged": False, "note": "ünïcode"}
DATA = checkpoint.dumps(TENSORS, MANIFEST)


def assert_is_what_was_written(data: bytes) -> None:
    tensors, manifest = checkpoint.loads(data)
    assert {key: manifest[key] for key in MANIFEST} == MANIFEST
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_tensors_and_manifest_are_read_back() -> None:
    assert_is_what_was_written(DATA)


def test_equal_states_are_equal_bytes() -> None:
    shuffled = {name: TENSORS[name].clone() for name in sorted(TENSORS)}
    assert checkpoint.dumps(shuffled, dict(sorted(MANIFEST.items()))) == DATA


def test_views_are_written_as_what_they_show() -> None:
    whole = torch.arange(12.0).view(3, 4)
    tensors, _ = checkpoint.loads(checkpoint.dumps({"columns": whole.T[1:3], "whole": whole}, {}))
    assert torch.equal(tensors["columns"], whole.T[1:3])


@given(length=st.integers(0, len(DATA) - 1))
def test_a_file_cut_short_is_refused(length: int) -> None:
    with pytest.raises(CheckpointError):
        checkpoint.loads(DATA[:length])


@given(bit=st.integers(0, 8 * len(DATA) - 1))
@settings(max_examples=400)
def test_a_flipped_bit_never_goes_unnoticed(bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        assert_is_what_was_written(
            bytes(damaged)
        )  # Upper and lower case of an escaped character mean the same.
    except CheckpointError:
        return


@pytest.mark.parametrize("changed", [{"round": 8}, {"run": "abd"}, {"diverged": True}])
def test_a_manifest_that_was_tampered_with_is_refused(changed: dict[str, Any]) -> None:
    key, value = next(iter(changed.items()))
    was, is_now = (f'\\"{key}\\": {content}'.encode() for content in (_json(MANIFEST[key]), _json(value)))
    header = DATA[8 : 8 + struct.unpack("<Q", DATA[:8])[0]]
    assert was in header
    edited = header.replace(was, is_now)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.loads(struct.pack("<Q", len(edited)) + edited + DATA[8 + len(header) :])


def _json(value: object) -> str:
    return f'\\"{value}\\"' if isinstance(value, str) else str(value).lower()


FOREIGN = {
    "nothing": b"",
    "text": b"round 7 of 100",
    "a model": save({"weight": torch.zeros(2)}),
    "another program's": save({"x": torch.zeros(2)}, {"fedq": "not JSON"}),
    "a list": save({"x": torch.zeros(2)}, {"fedq": "[1, 2]"}),
    "half a manifest": save({"x": torch.zeros(2)}, {"fedq": '{"format": 1}'}),
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        checkpoint.loads(data)


def test_another_format_is_named() -> None:
    with pytest.raises(CheckpointError, match="format 99; this version reads format 5"):
        checkpoint.loads(save({"x": torch.zeros(2)}, {"fedq": '{"format": 99, "digest": ""}'}))


@pytest.mark.parametrize(
    "change", [{"rounds": 9}, {"algorithm": {"kind": "fedprox"}}, {"execution": {"precision": "float32"}}]
)
def test_another_computation_has_another_fingerprint(change: dict[str, Any]) -> None:
    assert checkpoint.fingerprint(specification(SYNTHETIC, **change), 0) != checkpoint.fingerprint(
        specification(SYNTHETIC), 0
    )
    assert checkpoint.fingerprint(specification(SYNTHETIC), 0) != checkpoint.fingerprint(
        specification(SYNTHETIC), 1
    )


@pytest.mark.parametrize(
    "change", [{"name": "renamed"}, {"seeds": [0, 5]}, {"execution": {"priority": 9, "engine": "reference"}}]
)
def test_names_and_execution_do_not_make_another_run(change: dict[str, Any]) -> None:
    assert checkpoint.fingerprint(specification(SYNTHETIC, **change), 0) == checkpoint.fingerprint(
        specification(SYNTHETIC), 0
    )


def test_a_checkpoint_of_another_run_is_refused_and_changes_nothing() -> None:
    other, run = (
        Simulation(specification(QUADRATIC, algorithm={"kind": kind}), seed=0)
        for kind in ("scaffold", "fedavg")
    )
    other.advance()
    run.advance()
    before = run.checkpoint()
    for data in (other.checkpoint(), other.checkpoint()[:-1]):
        with pytest.raises(CheckpointError):
            run.restore(data)
    assert run.checkpoint() == before


def test_a_checkpoint_grows_with_those_who_took_part_and_not_with_the_population() -> None:
    def size(clients: int) -> int:
        document: Document = {
            "name": "many",
            "problem": {"dataset": {"kind": "quadratic", "generate": {"clients": clients, "dim": 3}}},
            "algorithm": {"kind": "scaffold"},
            "local": {"lr": 0.05, "steps": 5},
            "participation": {"kind": "uniform", "clients_per_round": 2},
            "rounds": 3,
        }
        simulation = Simulation(ExperimentSpec.model_validate(document), seed=0)
        simulation.advance()
        return len(simulation.checkpoint())

    assert size(5_000) < size(50) + 100
