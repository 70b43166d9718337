"""Validation errors of a document: JSON pointers, messages and suggestions."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

from fedcore.families import models_of
from fedcore.spec import yaml_documents
from fedq.schemas import Flaw


class FileCheck(BaseModel):
    """Errors of a file."""

    file: str
    valid: bool
    errors: list[Flaw]


def join_pointer(parts: Iterable[str | int]) -> str:
    """Return the JSON pointer with these `parts`; the empty string is the whole document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def pointer_to(location: Iterable[str | int], document: Any) -> str:
    """Return the JSON pointer for a validation error's `location` in `document`.

    Pydantic puts more into a location than the path: the tag chosen in a discriminated union, after
    the path of the block, and a label for the member of a plain union, after the path of the value.
    The document itself tells which part is which: a tag equals its block's `kind`, and nothing lies
    below a value that is not a container.
    """
    path: list[str | int] = []
    entered = False
    for part in location:
        if isinstance(document, dict) and not entered and part == document.get("kind", "own"):
            entered = True
        elif isinstance(document, dict):
            path.append(part)
            document, entered = document.get(str(part)), False
        elif isinstance(document, list) and isinstance(part, int):
            path.append(part)
            document, entered = (document[part] if part < len(document) else None), False
    return join_pointer(path)


def located(flaws: Sequence[Flaw], text: str) -> list[Flaw]:
    """Return the errors, those in the JSON or YAML document `text` with line and column."""
    # Others are of parameters, headers and code bundles.
    pointers = {flaw.pointer for flaw in flaws if flaw.pointer == "" or flaw.pointer.startswith("/")}
    places = yaml_documents.locate(text, pointers)
    return [
        flaw.model_copy(update=places[flaw.pointer]._asdict()) if flaw.pointer in places else flaw
        for flaw in flaws
    ]


def suggestion(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """Suggest the field of `model` that resembles the one at a validation error's `location`, or
    list the known fields.
    """
    *path, field = location
    fields = sorted({name for block in _blocks_at(model, path) for name in block.model_fields})
    close = get_close_matches(str(field), fields, 1)
    return f"did you mean {close[0]}?" if close else f"known fields: {', '.join(fields)}"


def _blocks_at(model: type[BaseModel], path: Sequence[str | int]) -> Sequence[type[BaseModel]]:
    blocks = [model]
    for part in path:
        below = [inner for block in blocks for inner in _below(block, part)]
        # Otherwise `part` is the index of an item, or the label of a plain union's member: the
        # block is the same.
        blocks = below or [block for block in blocks if _is_kind(block, part)] or blocks
    return blocks


def _below(block: type[BaseModel], field: str | int) -> Sequence[type[BaseModel]]:
    found = block.model_fields.get(str(field))
    return models_of(found) if found else []


def _is_kind(block: type[BaseModel], tag: str | int) -> bool:
    kind = block.model_fields.get("kind")
    return kind is not None and tag in get_args(kind.annotation)


TOLD = {
    "missing": "required",
    "union_tag_not_found": "required: selects one of the kinds",
    "model_attributes_type": "must be a mapping with a kind, e.g. {kind: ...}",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
}
"""Messages by pydantic's error type."""


def errors_of(errors: Sequence[Any], model: type[BaseModel], document: Any, at: str = "") -> list[Flaw]:
    """Convert pydantic's errors about `document`, which stands at `at` in the body and should be a
    `model`.
    """
    within = {
        error["loc"][:depth]
        for error in errors
        for depth in range(len(error["loc"]))
        if error["type"] != "too_short"
    }
    # A list of which an entry is wrong is said to be too short as well: Pydantic counts only right
    # ones.
    told = [error for error in errors if error["type"] != "too_short" or error["loc"] not in within]
    return [Flaw(pointer=at + _place(error, document), detail=_advice(error, model)) for error in told]


def _place(error: Any, document: Any) -> str:
    pointer = pointer_to(error["loc"], document)
    return f"{pointer}/kind" if error["type"].startswith("union_tag") else pointer


def _advice(error: Any, model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown field; {suggestion(model, error['loc'])}"
    return detail_of(error)


def detail_of(error: Any) -> str:
    """Message for one of pydantic's errors."""
    match error["type"]:
        case "union_tag_invalid":
            tag = error["ctx"]["tag"]
            return f"must be one of {error['ctx']['expected_tags']}, not {tag!r}{_no_package(tag)}"
        case "literal_error":
            return f"{error['msg']}{_given(error['input'])}{_no_package(error['input'])}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "missing" | "union_tag_not_found":
            return TOLD[error["type"]]
        case kind:
            return f"{TOLD.get(kind, error['msg'])}{_given(error['input'])}"


def _no_package(name: Any) -> str:
    """The likely cause of an unknown `package/kind`."""
    return "; no installed package defines it" if isinstance(name, str) and "/" in name else ""


def _given(value: Any) -> str:
    """The invalid value, if it is short."""
    return f", not {value!r}" if isinstance(value, str | int | float) and len(repr(value)) <= 60 else ""
