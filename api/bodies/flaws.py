"""What is wrong with a document, in words of the specification, each with a pointer to its place."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from api.bodies.pointers import locate
from api.bodies.spelling import suggestion
from api.schemas import Flaw

TOLD = {
    "missing": "required",
    "union_tag_not_found": "required: it says which of the choices is meant",
    "model_attributes_type": "must be a block that says its kind, as {kind: ...}",
    "model_type": "must be a block of fields",
    "dict_type": "must be a block of fields",
}
"""Pydantic's errors by type, in words of the specification."""


def flaws_of(errors: Sequence[Any], model: type[BaseModel], document: Any, at: str = "") -> list[Flaw]:
    """Pydantic's errors about `document`, which stands at `at` in the body and was to be a `model`."""
    within = {error["loc"][:depth] for error in errors for depth in range(len(error["loc"])) if error["type"] != "too_short"}
    # A list of which an entry is wrong is said to be too short as well: Pydantic counts only right ones.
    told = [error for error in errors if error["type"] != "too_short" or error["loc"] not in within]
    return [Flaw(pointer=at + _place(error, document), detail=_advice(error, model)) for error in told]


def _place(error: Any, document: Any) -> str:
    pointer = locate(error["loc"], document)
    return f"{pointer}/kind" if error["type"].startswith("union_tag") else pointer


def _advice(error: Any, model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown field; {suggestion(model, error['loc'])}"
    return detail_of(error)


def detail_of(error: Any) -> str:
    """One of pydantic's errors, in words of the specification."""
    match error["type"]:
        case "union_tag_invalid":
            return f"must be one of {error['ctx']['expected_tags']}, not {error['ctx']['tag']!r}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "missing" | "union_tag_not_found":
            return TOLD[error["type"]]
        case kind:
            return f"{TOLD.get(kind, error['msg'])}{_given(error['input'])}"


def _given(value: Any) -> str:
    """The value, where it is short enough to help."""
    return f", not {value!r}" if isinstance(value, str | int | float) and len(repr(value)) <= 60 else ""
