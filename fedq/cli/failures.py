"""Exit codes for use in pipelines, and printing of errors."""

from enum import IntEnum

from rich.text import Text

from fedq.cli.terminal import stderr
from fedq.client import (
    ClientError,
    ConflictError,
    ExportError,
    InvalidRequestError,
    MissingPackageError,
    NotAllowedError,
    NotFoundError,
    ServiceError,
    UnreadableDataError,
    UnreadableSpecificationError,
)


class ExitCode(IntEnum):
    """Exit codes; MEANINGS describes them."""

    DONE = 0
    UNSUCCESSFUL = 1
    REFUSED = 2
    UNREACHABLE = 3
    IMPOSSIBLE = 4
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "success",
    ExitCode.UNSUCCESSFUL: (
        "the experiment failed, was cancelled or differs from the original, or `fedq up` could not start"
    ),
    ExitCode.REFUSED: "the command or its input is not valid",
    ExitCode.UNREACHABLE: "the service is unreachable or failed",
    ExitCode.IMPOSSIBLE: "not found, in conflict with the current state, or not permitted",
    ExitCode.INTERRUPTED: "interrupted",
}
CODES: dict[type[ClientError], ExitCode] = {
    UnreadableSpecificationError: ExitCode.REFUSED,
    UnreadableDataError: ExitCode.REFUSED,
    MissingPackageError: ExitCode.REFUSED,
    ExportError: ExitCode.REFUSED,
    InvalidRequestError: ExitCode.REFUSED,
    NotFoundError: ExitCode.IMPOSSIBLE,
    ConflictError: ExitCode.IMPOSSIBLE,
    NotAllowedError: ExitCode.IMPOSSIBLE,
}


def code_of(error: ClientError) -> ExitCode:
    """The exit code for `error`."""
    return CODES.get(type(error), ExitCode.UNREACHABLE)


def explain(error: ClientError) -> None:
    """Print an error on stderr, with the position of each invalid field."""
    if isinstance(error, ServiceError) and error.flaws:
        complain(error.problem.title)
        for flaw in error.flaws:
            place = "" if flaw.line is None else f" (line {flaw.line})"
            stderr().print(Text.assemble("  ", (flaw.pointer or "/", "bold"), f"{place}: {flaw.detail}"))
    else:
        complain(str(error))


def complain(message: str) -> None:
    """Print a message on stderr."""
    stderr().print(Text.assemble(("fedq: ", "red"), message))
