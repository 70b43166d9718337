"""Errors, as RFC 9457 lays them out."""

from fedq.schemas.base import Schema


class Flaw(Schema):
    """One thing that is wrong with a request."""

    pointer: str
    """JSON pointer (RFC 6901) into the request's body; for a parameter, `?name`, for a header, its name, and in an uploaded file, the
    array or column."""
    detail: str
    """What is wrong there, and what would be right."""
    line: int | None = None
    """Where that begins in a YAML body of at most 64 KiB, counted from 1; of what is missing, the block that lacks it. In JSON, only of
    what cannot be read."""
    column: int | None = None
    """The character in that line, counted from 1."""


class ProblemDetails(Schema):
    """An error, as RFC 9457 lays it out."""

    type: str
    """What kind of problem: `about:blank` where the status says it all, else `urn:fedq:problem:...`."""
    title: str
    """The kind of problem, in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What went wrong this time."""
    instance: str
    """The path that was asked for."""
    errors: list[Flaw]
    """Each thing that is wrong with the request, with its place."""
