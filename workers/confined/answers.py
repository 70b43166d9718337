"""Answers of a computing process, checked before anything is used or stored: whatever is of another
form is an error of the bundle.

Each function takes the JSON of an answer, and raises the error that it describes, if it describes
one: SpecificationError, DataUnavailableError, MemoryError or UserCodeError; or ProtocolError.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from fedcore.errors import CheckpointError, DataUnavailableError, SpecificationError, UserCodeError
from fedcore.measures import count_numbers
from fedcore.measures.base import MAX_NUMBERS
from fedcore.platform.logging import storable_text
from fedcore.simulation.report import RoundReport, StopReason
from fedcore.spec.checks import MAX_PARAMETERS
from fedcore.spec.code import Kinds
from fedcore.spec.experiment import MAX_RUNS
from fedcore.user_traceback import MAX_LENGTH, UserTraceback
from fedq.planning.estimates import RunEstimate
from fedq.schemas import Flaw, PrivacyPlan
from fedq.validation_errors import MAX_FLAWS, foreign_values
from workers.confined.protocol import ProtocolError

MAX_DETAIL = 2 * MAX_LENGTH
"""Characters of a text."""
MAX_COMPONENTS = 100
"""Maximum number of components in a specification without its sweep."""


def _cleaned(value: Any) -> Any:
    # Users' code puts anything into the texts of its errors.
    return storable_text(value) if isinstance(value, str) else value


_Text = Annotated[str, Field(max_length=MAX_DETAIL), BeforeValidator(_cleaned)]
_Word = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Size = Annotated[int, Field(ge=1, lt=2**63)]
_Work = Annotated[float, Field(ge=0, le=1e36)]
_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Measure = Annotated[str, Field(max_length=100, pattern=r"^[\w.:/ -]+$")]
_Values = Annotated[list[float], Field(fail_fast=True, max_length=MAX_NUMBERS)]


def _of_limited_size(rows: list[list[float]]) -> list[list[float]]:
    if (numbers := count_numbers(rows)) > MAX_NUMBERS:
        raise ValueError(f"must have at most {MAX_NUMBERS} numbers, not {numbers}")
    return rows


_Rows = Annotated[
    list[_Values], Field(fail_fast=True, max_length=MAX_NUMBERS), AfterValidator(_of_limited_size)
]


class _Answer(BaseModel):
    # Built when first used: the service reads answers of bundles alone.
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True
    )


class _Nothing(_Answer):
    """An answer that is bytes alone."""


class _Best(_Answer):
    metric: _Measure
    round: _Count
    value: Annotated[float, Field(allow_inf_nan=False)]


class _Choice(_Answer):
    engine: _Word
    how: _Word
    instead_of: _Word | None = None


class ReportedState(_Answer):
    """State of a run between rounds."""

    round: _Count
    diverged: bool
    divergence: _Text | None
    stopped: Literal[StopReason.PATIENCE, StopReason.TARGET] | None
    choice: _Choice
    memory_divisor: Annotated[int, Field(ge=1, lt=2**31)]
    precision: Literal["float32", "float64"]
    data_source: _Word
    data_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    noise_multiplier: _Finite | None = None
    best: _Best | None = None


class _Report(_Answer):
    arm: _Count
    seed: _Count
    round: _Count
    local_steps: _Count
    bytes_up: _Count
    bytes_down: _Count
    seconds: _Finite
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    extra: Annotated[dict[_Measure, float | _Values | _Rows], Field(max_length=1_000)]
    diverged: bool
    stopped: Literal[StopReason.PATIENCE, StopReason.TARGET] | None


class _State(_Answer):
    state: ReportedState


class _Round(_State):
    report: _Report


class _ReportedFlaw(_Answer):
    pointer: _Text
    detail: _Text


_KINDS: TypeAdapter[dict[str, tuple[str, ...]]] = TypeAdapter(Kinds)
_Flaws = Annotated[list[_ReportedFlaw], Field(fail_fast=True, max_length=MAX_FLAWS)]


def _storable(fields: dict[str, Any]) -> dict[str, Any]:
    flaw = next(foreign_values(fields), None)
    if flaw is not None:
        raise ValueError(f"{flaw.pointer}: {flaw.detail}")
    return fields


class _Checked(_Answer):
    # JSON has lists for tuples, which strict models do not take.
    components: Annotated[dict[str, Any], Field(min_length=1), AfterValidator(_KINDS.validate_python)]
    flaws: _Flaws


class _Privacy(_Answer):
    noise_multiplier: _Finite
    epsilon: _Finite | None
    delta: Annotated[float, Field(ge=0, le=1)]


class _Estimate(_Answer):
    parameters: Annotated[int, Field(ge=1, le=MAX_PARAMETERS)]
    local_steps: _Count
    gradients: _Count
    work: _Work
    bytes_up: _Count
    bytes_down: _Count
    memory_bytes: _Size
    exactness: _Text
    privacy: _Privacy | None


class _Prepared(_Answer):
    flaws: _Flaws
    components: Annotated[
        dict[_Word, Annotated[dict[str, Any], AfterValidator(_storable)]], Field(max_length=MAX_COMPONENTS)
    ] = {}
    estimates: Annotated[list[_Estimate], Field(fail_fast=True, max_length=MAX_RUNS)] = []

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if bool(self.flaws) == bool(self.estimates):
            raise ValueError("must have either flaws or estimates")
        return self


class _Traceback(_Answer):
    type: _Text
    message: _Text
    file: _Text | None
    line: Annotated[int, Field(ge=0, lt=2**31)] | None
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


class _Called(_Answer, Generic[M]):
    value: M


class CheckedBundle(NamedTuple):
    """Components of a bundle, and findings of its checks."""

    components: Mapping[str, Sequence[str]]
    """Its kinds, by family."""
    flaws: list[Flaw]


class PreparedSpecification(NamedTuple):
    """Facts about a specification that only the bundle which it uses knows."""

    flaws: list[Flaw]
    """If there are any, there is nothing else."""
    components: Mapping[str, dict[str, Any]]
    """Fields of the bundle's components, by the JSON pointer to the block."""
    estimates: list[RunEstimate]


def state_of(fields: dict[str, Any], *, restored: bool = False) -> ReportedState:
    """The state in an answer; if it was to be `restored`, CheckpointError may be raised, too."""
    return _answered(_State, fields, restored=restored).state


def round_of(fields: dict[str, Any]) -> tuple[RoundReport, ReportedState]:
    """The report in an answer, and the state after it."""
    answer = _answered(_Round, fields)
    return RoundReport(**answer.report.model_dump()), answer.state


def expect_data_alone(fields: dict[str, Any]) -> None:
    """Raise what an answer describes whose bytes were asked for."""
    _answered(_Nothing, fields)


def checked_bundle(fields: dict[str, Any]) -> CheckedBundle:
    """The answer of `check`."""
    found = _answered(_Called[_Checked], fields).value
    return CheckedBundle(found.components, _flaws_of(found.flaws))


def prepared_specification(fields: dict[str, Any]) -> PreparedSpecification:
    """The answer of `prepare`."""
    found = _answered(_Called[_Prepared], fields).value
    return PreparedSpecification(
        _flaws_of(found.flaws), found.components, [_estimate(each) for each in found.estimates]
    )


def _flaws_of(flaws: Sequence[_ReportedFlaw]) -> list[Flaw]:
    return [Flaw(pointer=flaw.pointer, detail=flaw.detail) for flaw in flaws]


def _estimate(found: _Estimate) -> RunEstimate:
    values = found.model_dump(exclude={"privacy"})
    privacy = None if found.privacy is None else PrivacyPlan(**found.privacy.model_dump())
    return RunEstimate(**values, privacy=privacy)


def _answered(model: type[M], fields: dict[str, Any], *, restored: bool = False) -> M:
    if "error" not in fields:
        return _parsed(model, fields)
    flaw = _parsed(_Failure, fields).error
    match flaw:
        case _SpecificationFlaw():
            raise SpecificationError(flaw.pointer, flaw.detail)
        case _CodeFlaw():
            raise UserCodeError(str(UserTraceback(**flaw.error.model_dump())))
        case _Flaw(kind="data"):
            raise DataUnavailableError(flaw.detail)
        case _Flaw(kind="memory"):
            raise MemoryError(flaw.detail)
        case _ if restored:
            raise CheckpointError(flaw.detail)
        case _:
            raise ProtocolError(
                f"the bundle's process was given no checkpoint and refuses one: {flaw.detail}"
            )


def _parsed(model: type[M], fields: dict[str, Any]) -> M:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ProtocolError(
            f"the bundle's process sent an answer of another form: {place}: {first['msg']}"
        ) from None
