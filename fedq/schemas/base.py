"""Base class of responses, problem details, and times in request bodies."""

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

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
    next: str | None
    """The `cursor` of the next page; null on the last one."""


class Flaw(Schema):
    """An error in a field of a request."""

    pointer: str
    """JSON pointer (RFC 6901) into the request body; `?name` for a parameter, the name for a
    header, and for an uploaded file, the array or column.
    """
    detail: str
    """Description of the error and of valid values."""
    line: int | None = None
    """Where that begins in a YAML body of at most 64 KiB, counted from 1; of what is missing, the
    block that lacks it. In JSON, only of what cannot be read.
    """
    column: int | None = None
    """Column in that line, from 1."""


class ProblemDetails(Schema):
    """An error in the format of RFC 9457."""

    type: str
    """Problem type: `urn:fedq:problem:...`, or `about:blank` if the status is sufficient."""
    title: str
    """Short description of the problem type."""
    status: int
    """The HTTP status."""
    detail: str
    """Description of this error."""
    instance: str
    """Path of the request."""
    errors: list[Flaw]
    """Errors of individual fields."""
