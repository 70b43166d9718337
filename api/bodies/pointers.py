"""JSON pointers (RFC 6901) to the culprit in a request's body."""

from collections.abc import Iterable
from typing import Any


def join(parts: Iterable[str | int]) -> str:
    """The pointer made of `parts`; the empty string is the whole document."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def locate(location: Iterable[str | int], document: Any) -> str:
    """The pointer for a validation error's `location` in `document`.

    Pydantic puts more into a location than the path: the tag chosen in a discriminated union, after the path of the
    block, and a label for the member of a plain union, after the path of the value. The document itself tells which
    part is which: a tag equals its block's `kind`, and nothing lies below a value that is no container.
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
    return join(path)
