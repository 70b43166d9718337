"""Findings of checks, each with the line of the author's code."""

from __future__ import annotations

import ast
import sys
from difflib import get_close_matches
from itertools import dropwhile
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

from pydantic import BaseModel, ConfigDict

Place = tuple[str, int | None]
_OWN = str(Path(__file__).parent)
NO_ERROR = "no error"
"""Expected of a check that an error ended."""
ON_THE_SAME_DEVICE = "make tensors beside those that are given: `x.new_zeros(...)`, or `device=x.device`"
_NO_GPU = ("NVIDIA driver", "not compiled with CUDA", "No CUDA GPUs")
"""Parts of PyTorch's messages on `.cuda()` and `device="cuda"` where there is no GPU."""


class Finding(BaseModel):
    """A check that a component does not pass."""

    model_config = ConfigDict(frozen=True)

    check: str
    """Name of the check."""
    expected: str
    """The state that was expected."""
    found: str
    """The state that was found."""
    cause: str
    """The usual cause, with the fix."""
    file: str | None = None
    """Path of the author's file, if a line of it is to blame."""
    line: int | None = None
    """Line in `file`, counted from 1."""

    @property
    def place(self) -> str:
        """`file:line`, as editors read it; empty if unknown."""
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def message(self) -> str:
        """Expected, found, and the usual cause, in sentences."""
        told = f"expected {self.expected}; found {self.found}. Usual cause: {self.cause}."
        return told.replace("?.", "?")

    def __str__(self) -> str:
        return f"{self.place}: {self.check}: {self.message}".removeprefix(": ")


class CheckResult(BaseModel):
    """Result of one check of a component."""

    check: str
    """Name of the check, a sentence."""
    finding: Finding | None = None
    """Null if the component passes."""


class ComponentReport(BaseModel):
    """Results of the checks of one component."""

    family: str
    """Family, as in the entry points `fedq.<family>`."""
    kind: str
    """Kind of the component."""
    component: str
    """Module and name of its class."""
    results: list[CheckResult]
    """The checks in order, up to one whose finding others would only repeat."""


class ExtensionReport(BaseModel):
    """Results of the checks of a folder or an installed package."""

    extension: str
    """The folder or package."""
    passed: bool
    """True if there are no findings."""
    components: list[ComponentReport]
    """Its components."""
    findings: list[Finding]
    """Findings about the package itself, then about its components."""


class CheckFailedError(AssertionError):
    """A check that failed, with what a finding says; `at` is the function, class or field at fault."""

    def __init__(self, expected: str, found: str, cause: str, at: object = None) -> None:
        super().__init__(f"expected {expected}; found {found}")
        self.expected, self.found, self.cause, self.at = expected, found, cause, at


def require(condition: object, expected: str, found: str, cause: str, at: object = None) -> None:
    """Raise CheckFailedError unless `condition` is true."""
    if not condition:
        raise CheckFailedError(expected, found, cause, at)


def finding_of(check: str, error: Exception, component: type[Any]) -> Finding:
    """The finding that an error in a check of `component` stands for."""
    innermost = innermost_place(error, component)
    if isinstance(error, CheckFailedError):
        place = innermost if error.at is None else _place(error.at, component)
        said = error.expected, error.found, error.cause
    else:
        place = innermost
        said = NO_ERROR, f"{type(error).__name__}: {error}", _cause_of(error)
    file, line = place or (_file(component), class_line(component))
    return Finding(check=check, expected=said[0], found=said[1], cause=said[2], file=file, line=line)


def innermost_place(error: Exception, component: type[Any]) -> Place | None:
    """The innermost line of the component's code, called by a check, that an error passed through."""
    files = author_files(component)
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    # By the order of the traceback: the frame of a generator that an error has ended has no caller.
    called = dropwhile(lambda place: not place[0].startswith(_OWN), places)
    return next((place for place in reversed([*called]) if place[0] in files), None)


def _cause_of(error: Exception) -> str:
    """The usual cause of an error in the author's code."""
    if isinstance(error, AttributeError) and error.obj is not None:
        near = get_close_matches(error.name or "", [name for name in dir(error.obj) if name[0] != "_"], 1)
        if near:
            return f"a misspelt name; did you mean `{near[0]}`?"
    if any(told in str(error) for told in _NO_GPU):
        return f"a device that the code names; {ON_THE_SAME_DEVICE}"
    return "a mistake in the line named"


def author_files(component: type[Any]) -> set[str]:
    """The files that define a component: the files of its classes and, for an extension, of all
    modules of its package.
    """
    package = component.__module__.partition(".")[0]
    if package == "fedcore":
        return {_file(member) for member in component.__mro__ if member.__module__.startswith(package)}
    return {
        module.__file__ or ""
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == package and getattr(module, "__file__", None)
    }


def author_line(component: type[Any]) -> tuple[str, int] | None:
    """The innermost line of the component's code that is being executed."""
    files = author_files(component)
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way
    while frame is not None:
        if frame.f_code.co_filename in files and _called_by_check(frame):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def class_line(component: type[Any]) -> int | None:
    """First line of a class in its file."""
    node = class_node(component)
    return None if node is None else node.lineno


def field_line(component: type[Any], field: str) -> int | None:
    """Line of a field's annotation in its class."""
    node = class_node(component)
    for statement in [] if node is None else node.body:
        if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", None) == field:
            return statement.lineno
    return class_line(component)


class Field:
    """A field of a component, as the place of a finding."""

    def __init__(self, component: type[Any], name: str) -> None:
        self.component, self.name = component, name


def _called_by_check(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OWN):
            return True
        frame = frame.f_back
    return False


def _place(at: object, component: type[Any]) -> Place | None:
    """File and line of a function, a class, a field or (file, line), if the author wrote it."""
    if isinstance(at, tuple):
        return at[0], at[1]
    if isinstance(at, Field):
        return _file(at.component), field_line(at.component, at.name)
    if isinstance(at, type):
        return (_file(at), class_line(at)) if _file(at) in author_files(component) else None
    code = getattr(at, "__code__", None)
    if code is not None and code.co_filename in author_files(component):
        return code.co_filename, code.co_firstlineno
    owner = getattr(at, "__self__", None)  # of an inherited method, the class that did not override it
    return None if owner is None else _place(type(owner), component)


def _file(member: type[Any]) -> str:
    return getattr(sys.modules.get(member.__module__), "__file__", None) or "<unknown>"


def class_node(component: type[Any]) -> ast.ClassDef | None:
    """The definition of a class in its file, without the names around it; None if it is not there."""
    try:
        tree = ast.parse(Path(_file(component)).read_text(encoding="utf-8"))
    except OSError:
        return None
    name = component.__qualname__.rpartition(".")[2]
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    return next(found, None)
