"""Errors in users' code, as their authors want to see them: without FedQ's own frames."""

from __future__ import annotations

import importlib
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

MAX_LENGTH = 8_000
"""Characters of a traceback and of a message; the middle of longer ones is left out."""
_OWN = tuple(Path(__file__).parents[1] / package for package in ("api", "fedcore", "fedq", "workers"))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class UserTraceback:
    """An error, and where in the user's code it arose."""

    type: str
    """Name of its class."""
    message: str
    file: str | None
    """The file of the innermost frame of the user's code, relative to its folder; None if the error
    arose in no such frame.
    """
    line: int | None
    """The line in it, from 1."""
    traceback: str
    """The frames outside FedQ, causes included."""

    def __str__(self) -> str:
        if self.file is None:
            return self.traceback or f"{self.type}: {self.message}"
        return f"{self.type}: {self.message} ({self.file}, line {self.line})\n{self.traceback}".rstrip()

    def document(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def user_traceback(error: BaseException, folder: Path | None = None) -> UserTraceback:
    """Describe `error` for the author of the code in `folder`; None: any code that is neither FedQ's
    nor a library's, as in a notebook.
    """
    described = TracebackException.from_exception(error, limit=-200)
    place = next(reversed([*_user_frames(described.stack, folder)]), None)
    message = _message(error)
    if isinstance(error, SyntaxError) and _is_users(error.filename or "", folder):
        place, message = FrameSummary(error.filename or "", error.lineno, ""), error.msg
    for each in _chain(described):
        if getattr(each, "filename", None) is not None:  # of a syntax error
            each.filename = _short(each.filename, folder)
        each.stack = StackSummary.from_list(
            [_relative(frame, folder) for frame in each.stack if not _is_own(frame.filename)]
        )
    return UserTraceback(
        type=type(error).__name__[:200],
        message=_bounded(message),
        file=None if place is None else _short(place.filename, folder),
        line=None if place is None else place.lineno,
        traceback=_bounded("".join(described.format()).rstrip()),
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:
        return f"(its message cannot be read: {type(another).__name__})"


def _chain(error: TracebackException) -> Iterator[TracebackException]:
    """The error, its causes, and the members of groups."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
            waiting += getattr(each, "exceptions", None) or []


def _user_frames(stack: StackSummary, folder: Path | None) -> Iterator[FrameSummary]:
    return (frame for frame in stack if _is_users(frame.filename, folder))


def _is_users(filename: str, folder: Path | None) -> bool:
    if folder is not None:
        return Path(filename).is_relative_to(folder)
    return not _is_own(filename) and not filename.startswith(_LIBRARIES)


def _is_own(filename: str) -> bool:
    """True for frames of FedQ and of Python's import system."""
    return (
        filename.startswith("<frozen ")
        or filename == importlib.__file__
        or any(Path(filename).is_relative_to(own) for own in _OWN)
    )


def _relative(frame: FrameSummary, folder: Path | None) -> FrameSummary:
    # The line is read here, while the file's name still leads to it.
    return FrameSummary(_short(frame.filename, folder), frame.lineno, frame.name, line=frame.line)


def _short(filename: str, folder: Path | None) -> str:
    path = Path(filename)
    return path.relative_to(folder).as_posix() if folder and path.is_relative_to(folder) else filename


def _bounded(text: str) -> str:
    half = MAX_LENGTH // 2
    return text if len(text) <= MAX_LENGTH else f"{text[:half]}\n... (shortened)\n{text[-half:]}"
