"""`--set path=value`: changes to a specification, from the command line."""

from collections.abc import Sequence
from typing import Any

import typer

from fedcore import yamls

SWEEP = "sweep"


def overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """The document that `path=value` strings make; paths are dotted, values YAML. Raises typer.BadParameter."""
    document: dict[str, Any] = {}
    for assignment in assignments:
        path, sign, text = assignment.partition("=")
        if not (path and sign):
            raise typer.BadParameter(f"{assignment!r} is not of the form path=value, as in local.lr=0.1", param_hint="--set")
        _assign(document, path, _value(assignment, text))
    return document


def _assign(document: dict[str, Any], path: str, value: Any) -> None:
    *blocks, field = _keys(path)
    for block in blocks:
        document = document.setdefault(block, {})
        if not isinstance(document, dict):
            raise typer.BadParameter(f"{path}: {block} was given a value of its own before", param_hint="--set")
    document[field] = value


def _keys(path: str) -> list[str]:
    """The keys on the way; what a sweep varies is itself named by a dotted path."""
    head, _, rest = path.partition(".")
    return [head, rest] if head == SWEEP and rest else path.split(".")


def _value(assignment: str, text: str) -> Any:
    try:
        return yamls.load(text)
    except ValueError as error:
        raise typer.BadParameter(f"the value of {assignment!r} is not YAML: {error}", param_hint="--set") from error
