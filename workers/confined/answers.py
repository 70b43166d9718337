"""Answers of a computing process, checked: whatever is of another form is an error of the bundle."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError, UserCodeError
from fedcore.simulation.report import RoundReport, StopReason
from fedcore.user_traceback import MAX_LENGTH, UserTraceback
from workers.confined.protocol import ProtocolError

_Text = Annotated[str, Field(max_length=2 * MAX_LENGTH)]
_Word = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f]*$")]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Measure = Annotated[str, Field(max_length=100, pattern=r"^[\w.:/ -]+$")]
_Values = Annotated[list[float], Field(max_length=1_000_000)]


class _Answer(BaseModel):
    # Built when first used: the service reads answers of bundles alone.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class _Best(_Answer):
    metric: _Measure
    round: _Count
    value: Annotated[float, Field(allow_inf_nan=False)]


class RunState(_Answer):
    """State of a run between rounds."""

    round: _Count
    diverged: bool
    divergence: _Text | None
    stopped: Literal[StopReason.PATIENCE, StopReason.TARGET] | None
    choice: Annotated[dict[_Word, Any], Field(max_length=20)]
    batched_runs: _Count
    memory_divisor: Annotated[int, Field(ge=1, lt=2**31)]
    precision: Literal["float32", "float64"]
    data_source: _Word
    data_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    best: _Best | None = None


class _Report(_Answer):
    arm: _Count
    seed: _Count
    round: _Count
    local_steps: _Count
    bytes_up: _Count
    bytes_down: _Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    extra: Annotated[dict[_Measure, float | _Values], Field(max_length=1_000)]
    diverged: bool
    stopped: Literal[StopReason.PATIENCE, StopReason.TARGET] | None


class _State(_Answer):
    state: RunState


class _Round(_State):
    report: _Report


class _Traceback(_Answer):
    type: _Text
    message: _Text
    file: _Text | None
    line: int | None
    traceback: _Text


class _CodeFlaw(_Answer):
    kind: Literal["code"]
    error: _Traceback


class _SpecificationFlaw(_Answer):
    kind: Literal["specification"]
    pointer: _Text
    detail: _Text


class _Flaw(_Answer):
    kind: Literal["data", "checkpoint", "memory"]
    detail: _Text


class _Failure(_Answer):
    error: Annotated[_CodeFlaw | _SpecificationFlaw | _Flaw, Field(discriminator="kind")]


M = TypeVar("M", bound=BaseModel)


def state_of(fields: dict[str, Any]) -> RunState:
    """The state in an answer; raises ProtocolError."""
    return _parsed(_State, fields).state


def round_of(fields: dict[str, Any]) -> tuple[RoundReport, RunState]:
    """The report in an answer, and the state after it; raises ProtocolError."""
    answer = _parsed(_Round, fields)
    return RoundReport(**answer.report.model_dump()), answer.state


def raise_failure(fields: dict[str, Any]) -> None:
    """Raise the error that an answer describes, if it describes one: SpecificationError,
    DataUnavailableError, CheckpointError, MemoryError, or UserCodeError; or ProtocolError.
    """
    if "error" not in fields:
        return
    flaw = _parsed(_Failure, fields).error
    if isinstance(flaw, _SpecificationFlaw):
        raise SpecificationError(flaw.pointer, flaw.detail)
    if isinstance(flaw, _CodeFlaw):
        raise UserCodeError(str(UserTraceback(**flaw.error.model_dump())))
    raise _MEANINGS[flaw.kind](flaw.detail)


_MEANINGS: dict[str, type[Exception]] = {
    "data": DataUnavailableError,
    "checkpoint": CheckpointError,
    "memory": MemoryError,
}


def _parsed(model: type[M], fields: dict[str, Any]) -> M:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ProtocolError(
            f"the computing process sent an answer of another form: {error}"[:2_000]
        ) from None
