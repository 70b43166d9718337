"""Base class of responses, problem details, and times in request bodies."""

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from fedcore.block import describe_fields

Item = TypeVar("Item")

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def _storable(moment: datetime) -> datetime:
    # At the ends of the calendar a moment has no equal in UTC.
    if not EARLIEST <= moment < LATEST:
        raise ValueError("must be between the years 2000 and 9000")
    return moment


StoredMoment = Annotated[AwareDatetime, AfterValidator(_storable)]
"""Time that can be stored in the database."""


Notes = Annotated[str, Field(max_length=20_000)]
"""Markdown that users write about an experiment or a run."""


# Texts of responses, each with its example in the OpenAPI document.
ArmName = Annotated[str, Field(examples=["momentum=0.9"])]
Departures = Annotated[list[str], Field(examples=[["scikit-learn's digits (8 x 8) instead of MNIST"]])]
EventPosition = Annotated[str, Field(examples=["-.-3.-2"])]
ExperimentId = Annotated[str, Field(examples=["exp_01k9x3zq7rh2v8m4t6w0ybe5nc"])]
ExperimentName = Annotated[str, Field(examples=["momentum on digits"])]
KeyId = Annotated[str, Field(examples=["key_01k9x3zq7rh2v8m4t6w0ybe5k1"])]
MetricName = Annotated[str, Field(examples=["test_accuracy"])]
Packages = Annotated[list[str], Field(examples=[["ourlab-fedexp 1.2"]])]
PrefixedSha256 = Annotated[str, Field(examples=[f"sha256:{'7ec566d5' * 8}"])]
PresetName = Annotated[str, Field(examples=["demo"])]
Provenance = Annotated[dict[str, Any], Field(examples=[{"fedq": "0.1.0"}])]
RunId = Annotated[str, Field(examples=["run_01k9x3zq7rh2v8m4t6w0ybe5p0"])]
Sha256 = Annotated[str, Field(examples=["7ec566d5" * 8])]
Source = Annotated[str, Field(examples=["Li et al., FedProx (MLSys 2020), Section 5.2"])]
SweptSettings = Annotated[dict[str, Any], Field(examples=[{"local.optimizer.momentum": 0.9}])]
Tags = Annotated[list[str], Field(examples=[["digits"]])]
UserName = Annotated[str, Field(examples=["ada"])]
WebhookId = Annotated[str, Field(examples=["whk_01k9x3zq7rh2v8m4t6w0ybe5h1"])]
WorkerName = Annotated[str, Field(examples=["gpu-7:4242"])]


class Schema(BaseModel):
    """Base of all responses: read-only, with a description of every field."""

    # Built when first used: a client or a command receives few of them.
    model_config = ConfigDict(
        frozen=True, json_schema_extra=describe_fields, from_attributes=True, defer_build=True
    )


class RequestBody(BaseModel):
    """Base of request bodies: unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=describe_fields)


class Page(Schema, Generic[Item]):
    """A page of a list."""

    items: list[Item]
    """The items."""
    next: str | None = Field(examples=["exp_01k9x3zq7rh2v8m4t6w0ybe5nc"])
    """The `cursor` of the next page; null on the last one."""

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Name of a page of these items in the OpenAPI document, e.g. `RunPage`."""
        return f"{params[0].__name__}Page"

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.__doc__ = Page.__doc__


class Flaw(Schema):
    """An error in a field of a request."""

    pointer: str = Field(examples=["/rounds"])
    """JSON pointer (RFC 6901) into the request body; `?name` for a parameter, the name for a
    header, and for an uploaded file, the array or column.
    """
    detail: str = Field(examples=["required"])
    """Description of the error and of valid values."""
    line: int | None = None
    """Line on which that begins in a YAML body of at most 64 KiB, counted from 1; of what is
    missing, the block that lacks it. In JSON, only of what cannot be read.
    """
    column: int | None = None
    """Column in that line, from 1."""


class ProblemDetails(Schema):
    """An error in the format of RFC 9457."""

    type: str = Field(examples=["urn:fedq:problem:invalid"])
    """Problem type: `urn:fedq:problem:...`, or `about:blank` if the status is sufficient."""
    title: str = Field(examples=["Invalid request"])
    """Short description of the problem type."""
    status: int = Field(examples=[422])
    """The HTTP status."""
    detail: str = Field(examples=["/rounds: required"])
    """Description of this error."""
    instance: str = Field(examples=["/v1/experiments"])
    """Path of the request."""
    errors: list[Flaw]
    """Errors of individual fields."""
