"""Validation errors of a document, as the service and the command line tell them."""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from pydantic import BaseModel

from fedcore.spec import yaml_documents
from fedcore.spec.validation import explain_error, join_pointer, place_of
from fedq.schemas import Flaw

MAX_FLAWS = 100
"""Errors that are told of one document."""
MAX_FIELDS = 10_000
"""Maximum number of fields of one mapping in a document."""


def locate_errors(flaws: Sequence[Flaw], text: str) -> list[Flaw]:
    """Return the errors; errors in the JSON or YAML document `text` get line and column."""
    # Others are of parameters, headers and code bundles.
    pointers = {flaw.pointer for flaw in flaws if flaw.pointer == "" or flaw.pointer.startswith("/")}
    places = yaml_documents.locate(text, pointers)
    return [
        flaw.model_copy(update=places[flaw.pointer]._asdict()) if flaw.pointer in places else flaw
        for flaw in flaws
    ]


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
    return [
        Flaw(pointer=at + place_of(error, document), detail=explain_error(error, model)) for error in told
    ]


def foreign_values(document: Any) -> Iterator[Flaw]:
    """Yield values that JSON or a database cannot hold: NaN, infinities, NUL, unpaired surrogates,
    keys that are not strings.
    """
    # Of each level only an iterator is kept, and the key that it is at: a path for each value would
    # take more than the document.
    levels: list[Iterator[tuple[str | int, Any]]] = [iter([("", document)])]
    path: list[str | int] = [""]
    while levels:
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
            path.pop()
            continue
        path[-1], value = entry
        flaw = (
            _foreign(value)
            if len(levels) <= yaml_documents.MAX_DEPTH + 1
            else f"must not be nested deeper than {yaml_documents.MAX_DEPTH} levels"
        )
        if flaw:
            yield Flaw(pointer=join_pointer(path[1:]), detail=flaw)
        elif isinstance(value, dict | list):
            levels.append(iter(value.items()) if isinstance(value, dict) else enumerate(value))
            path.append("")


def _foreign(value: Any) -> str | None:
    match value:
        case float() if not isfinite(value):
            return f"must be a finite number, not {value}"
        case str() if not _storable(value):
            return "must not contain NUL or unpaired surrogates"
        case dict() if len(value) > MAX_FIELDS:
            return f"a mapping may have at most {MAX_FIELDS:,} fields, not {len(value):,}"
        case dict() if not all(isinstance(key, str) and _storable(key) for key in value):
            return "keys must be strings"
        case _:
            return None


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
