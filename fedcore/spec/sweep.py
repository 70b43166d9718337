"""The expansion of a sweep: a map from dotted paths to values becomes the product of arms."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import product
from math import prod
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedcore.errors import SpecificationError

Document = dict[str, Any]
NOT_SWEPT = frozenset({"name", "description", "tags", "seeds", "sweep", "execution"})

UNNAMED = frozenset({"kind", "content"})
"""What says nothing more in the name of an arm: the kind stands before, and what is in uploaded data follows from their id."""


def size(sweep: Mapping[str, list[Any]]) -> int:
    """Number of arms."""
    return prod(len(values) for values in sweep.values())


class Point(NamedTuple):
    """One point of the product."""

    name: str
    settings: Document
    document: Document
    """The specification at this point, without the sweep."""


def expand(document: Document) -> Iterator[Point]:
    """Yield the points of `document`'s sweep in order; raises SpecificationError for a path that leads nowhere."""
    base = {key: value for key, value in document.items() if key != "sweep"}
    sweep: Mapping[str, list[Any]] = document.get("sweep", {})
    for path in sweep:
        if path.split(".")[0] in NOT_SWEPT:
            raise SpecificationError(f"/sweep/{path}", "only what a run computes can be swept, not its name, seeds or execution")
    for values in product(*sweep.values()):
        settings = dict(zip(sweep, values, strict=True))
        arm = deepcopy(base)
        for path, value in settings.items():
            _assign(arm, path, value)
        yield Point(_name(settings) or document["algorithm"]["kind"], settings, arm)


def drop_foreign_fields(point: Point, error: ValidationError) -> bool:
    """Remove from the blocks whose `kind` was swept the fields that the new kind does not have; False if there are none."""
    blocks = [tuple(path.split(".")[:-1]) for path in point.settings if path.endswith(".kind")]
    dropped = False
    for flaw in error.errors():
        location = flaw["loc"]
        for block in blocks:
            # The location of a field of a discriminated union has the kind between the block and the field.
            if flaw["type"] == "extra_forbidden" and location[: len(block)] == block and len(location) == len(block) + 2:
                _find(point.document, block).pop(str(location[-1]))
                dropped = True
    return dropped


def _find(document: Document, block: tuple[str, ...]) -> Document:
    for key in block:
        document = document[key]
    return document


def _assign(document: Document, path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    block: Any = document
    for key in parents:
        if block.get(key) is None:
            block[key] = {}
        block = block[key]
        if not isinstance(block, dict):
            raise SpecificationError(f"/sweep/{path}", f"`{key}` is not a block of the specification")
    block[leaf] = deepcopy(value)


def _name(settings: Document) -> str:
    return ", ".join(_label(path.rsplit(".", 1)[-1], value) for path, value in settings.items())


def _label(leaf: str, value: Any) -> str:
    if leaf == "kind":
        return str(value)
    if isinstance(value, dict) and "kind" in value:
        return " ".join([value["kind"], *(f"{key}={_show(item)}" for key, item in value.items() if key not in UNNAMED)])
    return f"{leaf}={_show(value)}"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
