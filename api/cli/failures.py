"""Exit codes that a pipeline can use, and errors in words."""

from enum import IntEnum

from rich.text import Text

from api.cli.terminal import stderr
from api.client import (
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
    """How a command ended; MEANINGS says it in words."""

    DONE = 0
    UNSUCCESSFUL = 1
    REFUSED = 2
    UNREACHABLE = 3
    IMPOSSIBLE = 4
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.UNSUCCESSFUL: "the experiment waited for failed, was cancelled or differs from what it repeats, or `fedq up` could not start",
    ExitCode.REFUSED: "the command or what it was given is not valid",
    ExitCode.UNREACHABLE: "the service did not answer, or failed",
    ExitCode.IMPOSSIBLE: "there is no such thing, it makes no sense in its present state, or is not allowed",
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
    """Say on stderr what went wrong: where the service found flaws, each with its place."""
    if isinstance(error, ServiceError) and error.flaws:
        complain(error.problem.title)
        for flaw in error.flaws:
            place = "" if flaw.line is None else f" (line {flaw.line})"
            stderr().print(Text.assemble("  ", (flaw.pointer or "/", "bold"), f"{place}: {flaw.detail}"))
    else:
        complain(str(error))


def complain(message: str) -> None:
    """Say on stderr that something is wrong."""
    stderr().print(Text.assemble(("fedq: ", "red"), message))
