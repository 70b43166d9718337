"""`--set path=value`: changes to a specification, from the command line."""

from collections.abc import Sequence
from typing import Any

import typer

from fedcore.spec import yaml_documents

SWEEP = "sweep"


def overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """Document built from `path=value` strings; paths are dotted, values YAML.

    Raises typer.BadParameter.
    """
    document: dict[str, Any] = {}
    for assignment in assignments:
        path, sign, text = assignment.partition("=")
        if not (path and sign):
            raise typer.BadParameter(
                f"{assignment!r} is not of the form path=value, e.g. local.lr=0.1", param_hint="--set"
            )
        _assign(document, path, _value(assignment, text))
    return document


def _assign(document: dict[str, Any], path: str, value: Any) -> None:
    *blocks, field = _keys(path)
    for block in blocks:
        document = document.setdefault(block, {})
        if not isinstance(document, dict):
            raise typer.BadParameter(
                f"{path}: {block} already has a value and cannot also be a block", param_hint="--set"
            )
    document[field] = value


def _keys(path: str) -> list[str]:
    """Keys of a dotted path; the fields that a sweep varies are themselves dotted paths."""
    head, _, rest = path.partition(".")
    return [head, rest] if head == SWEEP and rest else path.split(".")


def _value(assignment: str, text: str) -> Any:
    try:
        return yaml_documents.load(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"the value of {assignment!r} is not valid YAML: {error}", param_hint="--set"
        ) from error
