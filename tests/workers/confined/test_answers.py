"""Answers of a computing process are believed only in the form, and about the run, that was asked."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from safetensors.torch import save

from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError, UserCodeError
from tests.builders.specifications import Document
from tests.support.scripted_bundles import ScriptedSandbox, each_lie, frame, lies
from tests.workers.confined.conftest import MINE, Open
from tests.workers.confined.test_simulation import SCAFFOLD, confined
from workers.confined.answers import prepared_specification, round_of, state_of
from workers.confined.confinement import Confinement
from workers.confined.protocol import ProtocolError
from workers.confined.simulation import ConfinedSimulation

STATE = {
    "round": 1,
    "diverged": False,
    "stopped": None,
    "choice": {"engine": "reference", "how": "forced", "instead_of": None},
    "memory_divisor": 1,
    "precision": "float64",
    "data_source": "generated",
    "data_sha256": None,
    "divergence": None,
}
REPORT = {
    "arm": 0,
    "seed": 1,
    "round": 1,
    "local_steps": 10,
    "bytes_up": 8,
    "bytes_down": 8,
    "seconds": 0.1,
    "train_loss": float("inf"),
    "test_loss": None,
    "test_accuracy": None,
    "extra": {"x": [1.0, 2.0], "own.measure": 3.0, "matrix": [[1.0, 2.0], [3.0, 4.0]]},
    "diverged": False,
    "stopped": None,
}


def test_a_report_is_taken_as_it_is() -> None:
    report, state = round_of({"report": REPORT, "state": STATE})
    assert {name: getattr(report, name) for name in REPORT} == REPORT
    assert state.model_dump() == {**STATE, "noise_multiplier": None, "best": None}
    assert state_of({"state": STATE}) == state


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes_up": -1},
        {"bytes_up": 2**63},
        {"local_steps": "many"},
        {"seconds": float("nan")},
        {"seconds": -1.0},
        {"train_loss": [1.0]},
        {"extra": {"a\x00b": 1.0}},
        {"extra": {"x": "text"}},
        {"extra": {"x": [0.0] * 10_001}},
        {"extra": {"x": [[0.0] * 101] * 100}},
        {"extra": {"x": [[[0.0]]]}},
        {"extra": {str(number): 1.0 for number in range(1_001)}},
        {"stopped": "rung"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_report_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="another form"):
        round_of({"report": REPORT | changes, "state": STATE})


@pytest.mark.parametrize(
    "changes",
    [
        {"round": -1},
        {"memory_divisor": 0},
        {"precision": "float16"},
        {"data_source": "x" * 501},
        {"data_source": "\x1b[2J"},
        {"data_sha256": "secret"},
        {"best": {"metric": "test_loss", "round": 1, "value": float("nan")}},
        {"best": {"metric": "test_loss\x00", "round": 1, "value": 1.0}},
    ],
    ids=str,
)
def test_a_state_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="another form"):
        state_of({"state": STATE | changes})


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        ({"kind": "specification", "pointer": "/rounds", "detail": "too many"}, SpecificationError),
        ({"kind": "data", "detail": "no files"}, DataUnavailableError),
        ({"kind": "checkpoint", "detail": "damaged"}, CheckpointError),
        ({"kind": "memory", "detail": "out of memory"}, MemoryError),
        (
            {
                "kind": "code",
                "error": {"type": "E", "message": "m", "file": "a.py", "line": 3, "traceback": "t"},
            },
            UserCodeError,
        ),
        ({"kind": "lease", "detail": "lost"}, ProtocolError),
        ({"kind": "data", "detail": "x" * 100_000}, ProtocolError),
        ("text", ProtocolError),
    ],
    ids=str,
)
def test_an_error_is_one_of_those_that_a_bundle_can_cause(error: Any, meaning: type[Exception]) -> None:
    with pytest.raises(meaning) as raised:
        state_of({"error": error}, restored=True)
    assert type(raised.value) is meaning


def test_an_error_of_a_checkpoint_is_one_of_the_answer_to_a_checkpoint() -> None:
    error = {"error": {"kind": "checkpoint", "detail": "damaged"}}
    with pytest.raises(CheckpointError):
        state_of(error, restored=True)
    for read in (state_of, round_of, prepared_specification):
        with pytest.raises(ProtocolError):
            read(error)


def test_texts_of_errors_can_be_stored_whatever_they_contain() -> None:
    traceback = {"type": "E", "message": "a\x00b\ud800", "file": None, "line": None, "traceback": ""}
    with pytest.raises(UserCodeError) as raised:
        state_of({"error": {"kind": "code", "error": traceback}})
    assert str(raised.value) == "E: a?b?"
    with pytest.raises(ProtocolError) as refused:
        state_of({"state": STATE, "\ud800\x00": 1})
    assert "\x00" not in str(refused.value).encode().decode()


LAST: Document = {**deepcopy({"report": REPORT, "state": STATE})}
OTHERS: list[Document] = [
    {"error": {"kind": "memory", "detail": "out of memory"}},
    {"error": {"kind": "specification", "pointer": "/rounds", "detail": "too many"}},
]
OF_A_BUNDLE = (UserCodeError, SpecificationError, DataUnavailableError, MemoryError)
MODEL = save({"weight": torch.ones(2, 3), "bias": torch.zeros(0)})


@contextmanager
def answering(answer: Callable[[str], bytes]) -> Iterator[ConfinedSimulation]:
    """A run of a bundle that says it has begun, and then this, by what it is asked to do."""
    begun = {**STATE, "round": 0}

    def say(request: dict[str, Any]) -> bytes:
        return frame({"state": begun}) if request["do"] == "start" else answer(request["do"])

    with ScriptedSandbox(say) as sandbox:
        simulation = confined(sandbox, SCAFFOLD)  # type: ignore[arg-type]
        try:
            yield simulation
        finally:
            simulation.close()


def advanced(answer: Document) -> None:
    """A run takes this answer for a round that is stored as it should be, or for an error of the bundle."""
    with answering(lambda _: frame(answer)) as simulation:
        try:
            report = simulation.advance()
        except OF_A_BUNDLE as error:
            assert simulation.round == 0
            assert "\x00" not in str(error).encode().decode()  # noqa: PT017 - of any of them
        else:
            assert (report.arm, report.seed, report.round, simulation.round) == (0, 1, 1, 1)
            assert len(json.dumps(report.row(), allow_nan=False)) < 2_000_000
            assert all(
                0 <= count < 2**63 for count in (report.local_steps, report.bytes_up, report.bytes_down)
            )
            json.dumps(simulation.facts.choice.document(), allow_nan=False)


@examples(max_examples=200)
@given(answer=lies([LAST, LAST, *OTHERS]))
def test_answer_about_a_round_is_a_round_or_an_error_of_the_bundle(answer: Document) -> None:
    advanced(answer)


@pytest.mark.nightly
def test_each_value_that_a_bundle_says_of_a_round_may_be_a_lie() -> None:
    for answer in (LAST, *OTHERS):
        for lie in each_lie(answer):
            advanced(lie)


@examples(max_examples=200)
@given(
    place=st.integers(0, len(MODEL) - 1),
    value=st.binary(min_size=0, max_size=12),
    cut=st.integers(0, 12),
)
def test_bytes_of_a_model_are_a_model_or_an_error_of_the_bundle(place: int, value: bytes, cut: int) -> None:
    with answering(lambda _: frame({}, MODEL[:place] + value + MODEL[place + cut :])) as simulation:
        try:
            model = simulation.model()
        except ProtocolError:
            return
        save(model)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b'{"a": {"dtype": "F8_E8M0", "shape": [0], "data_offsets": [0, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 9]}}',
        b'{"\\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}',
        b'{"a\\u0000": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}',
        b'{"__metadata__": {"a": 1}}',
    ],
    ids=repr,
)
def test_odd_headers_of_models_are_errors_of_the_bundle(header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header
    with (
        answering(lambda _: frame({}, data)) as simulation,
        pytest.raises(ProtocolError, match=r"can(not)? be read"),
    ):
        simulation.best_model()


@pytest.mark.parametrize("asked", ["model", "best_model", "checkpoint"])
@pytest.mark.parametrize("answer", [frame({"state": STATE}, b"x"), frame({"error": 1}), frame({}, b"")])
def test_data_come_alone_and_are_something(asked: str, answer: bytes) -> None:
    with answering(lambda _: answer) as simulation, pytest.raises(ProtocolError):
        getattr(simulation, asked)()


LIES = {
    "a later round": "state['round'] = 5",
    "the last round": "state['round'] = 10 ** 6",
    "another engine": "state['choice'] = {'engine': 'none', 'how': 'forced'}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_a_bundle_that_lies_about_its_run_fails_it(opened: Open, confinement: Confinement, name: str) -> None:
    source = f"""{MINE}
from workers.confined import computing

true_state = computing.Computing._state


def _state(self):
    state = true_state(self)
    if state['round']:
        {LIES[name]}
    return state


computing.Computing._state = _state
"""
    simulation = confined(opened(confinement, source), SCAFFOLD)
    with pytest.raises(ProtocolError):
        simulation.advance()
    assert simulation.round == 0
    simulation.close()


@pytest.mark.slow
def test_a_model_that_is_none_fails_the_run(opened: Open) -> None:
    source = f"{MINE}\nfrom workers.confined import computing\ncomputing.save = lambda named: b'no model'\n"
    simulation = confined(opened("limits", source), SCAFFOLD)
    simulation.advance()
    with pytest.raises(ProtocolError, match="model that cannot be read"):
        simulation.model()
    simulation.close()
