"""Encodes specifications as request bodies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from fedcore.presets import override
from fedcore.spec import yaml_documents
from fedq.client.errors import UnreadableSpecificationError

SUFFIXES = frozenset({".json", ".yaml", ".yml"})

Specification = Mapping[str, Any] | BaseModel | Path | str
"""A document, an ExperimentSpec, a JSON or YAML file (a path, or a string with such a suffix), or
the name of a preset.
"""


def body_of(specification: Specification, overrides: Mapping[str, Any]) -> bytes:
    """Request body: the document merged with `overrides`, or the name of a preset with them. Raises
    UnreadableSpecificationError.
    """
    if isinstance(specification, str) and Path(specification).suffix.lower() not in SUFFIXES:
        return _encode({"preset": specification, "overrides": overrides})
    return _encode(override(_document(specification), dict(overrides)))


def parse(text: str, origin: str) -> dict[str, Any]:
    """Parse a JSON or YAML document. `origin` names it in the message of
    UnreadableSpecificationError.
    """
    try:
        # JSON is YAML, so one reader does.
        document = yaml_documents.load(text)
    except ValueError as error:
        raise UnreadableSpecificationError(f"{origin} is not valid JSON or YAML: {error}") from error
    if not isinstance(document, dict):
        raise UnreadableSpecificationError(f"{origin} must contain a mapping, not {type(document).__name__}")
    return document


def _document(specification: Specification) -> dict[str, Any]:
    match specification:
        case BaseModel():
            return specification.model_dump(mode="json")
        case str() | Path():
            return parse(_read(Path(specification)), str(specification))
        case _:
            return dict(specification)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSpecificationError(f"{file} cannot be read: {error}") from error


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        # Infinities are passed on, for the service says where they stand.
        return to_json(body, inf_nan_mode="constants", fallback=_plain)
    except PydanticSerializationError as error:
        raise UnreadableSpecificationError(
            f"the specification is not serialisable as JSON: {error}"
        ) from error


def _plain(value: Any) -> Any:
    """Convert a NumPy array or number to lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} of type {type(value).__name__}")
