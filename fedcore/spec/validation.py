"""Messages about documents that are not valid: JSON pointers, words and suggestions.

Used for whole specifications, for the arms of a sweep, and for all other documents of users.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

from fedcore.families import models_of
from fedcore.installed_modules import is_replaced

_NAME = re.compile("'([^']*)'")
_NAMES = re.compile("'[^']*'(?:(?:, | or )'[^']*')*")
FEW = 8
"""Names that a message lists beside its suggestion."""
LONGEST = 60
"""Characters of an invalid value that a message shows, at most; of a name, its beginning."""
SLIP = 0.8
"""Similarity (of difflib) from which a word is a slip of another one."""


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
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}
"""Messages by pydantic's error type."""


def place_of(error: Any, document: Any) -> str:
    """Return the pointer to one of pydantic's errors about `document`."""
    pointer = pointer_to(error["loc"], document)
    return f"{pointer}/kind" if error["type"].startswith("union_tag") else pointer


def explain_error(error: Any, model: type[BaseModel]) -> str:
    """Message for one of pydantic's errors about a document that should be a `model`."""
    if error["type"] == "extra_forbidden":
        return f"unknown field; {suggestion(model, error['loc'])}"
    return detail_of(error)


def detail_of(error: Any) -> str:
    """Message for one of pydantic's errors."""
    match error["type"]:
        case "union_tag_invalid":
            return not_among(error["ctx"]["tag"], _quoted(error["ctx"]["expected_tags"]))
        case "literal_error" | "enum" if names := _quoted(error["ctx"]["expected"]):
            return not_among(error["input"], names)
        case "value_error":
            return str(error["ctx"]["error"])
        case "missing" | "union_tag_not_found":
            return TOLD[error["type"]]
        case kind:
            return f"{TOLD.get(kind, error['msg'])}{_given(error['input'])}"


def not_among(given: Any, names: Sequence[str]) -> str:
    """Message for a value that is none of `names`, with the one that it resembles; many names are
    listed only where it is hardly a slip of that one.
    """
    # The component of a package is not meant to be another one.
    close = get_close_matches(given, names, 1) if isinstance(given, str) and "/" not in given else []
    is_slip = bool(close and get_close_matches(given, close, 1, SLIP))
    listed = f"{len(names)} names" if is_slip and len(names) > FEW else ", ".join(map(repr, names))
    hint = f"; did you mean {close[0]!r}?" if close else ""
    if isinstance(given, str):
        return f"must be one of {listed}, not {_cut(given)!r}{_no_package(given)}{hint}"
    return f"must be one of {listed}{_given(given)}"


def _quoted(expected: str) -> list[str]:
    """The names that pydantic lists as `'a', 'b' or 'c'`; none where something else is among them."""
    return _NAME.findall(expected) if _NAMES.fullmatch(expected) else []


def _no_package(name: Any) -> str:
    """The likely cause of an unknown `package/kind`, and what helps."""
    if not (isinstance(name, str) and "/" in name):
        return ""
    module, _, kind = name.partition("/")
    if is_replaced(module):
        return f"; the module {_cut(module)} of the code takes the place of the package: write {_cut(kind)!r}"
    return (
        "; no installed package defines it: install its package with FedQ (`pip install`; of a service also"
        f" with its workers), or give its code (`--code FOLDER`) and write {_cut(kind)!r}"
    )


def _given(value: Any) -> str:
    """The invalid value, if it is a text or a short number."""
    if isinstance(value, str):
        return f", not {_cut(value)!r}"
    short = isinstance(value, int | float) and len(repr(value)) <= LONGEST
    return f", not {value!r}" if short else ""


def _cut(text: str) -> str:
    """The text, or where it is long its beginning."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
