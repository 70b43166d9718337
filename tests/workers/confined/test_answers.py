"""Answers of a computing process are believed only in the form, and about the run, that was asked."""

from typing import Any

import pytest

from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError, UserCodeError
from tests.workers.confined.conftest import MINE, Open
from tests.workers.confined.test_same_bits import SCAFFOLD, confined
from workers.confined.answers import raise_failure, round_of, state_of
from workers.confined.confinement import Confinement
from workers.confined.protocol import ProtocolError

STATE = {
    "round": 1,
    "diverged": False,
    "stopped": None,
    "choice": {"engine": "reference", "how": "forced"},
    "batched_runs": 1,
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
    "extra": {"x": [1.0, 2.0], "own.measure": 3.0},
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
    raise_failure({})
    with pytest.raises(meaning) as raised:
        raise_failure({"error": error})
    assert type(raised.value) is meaning


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
