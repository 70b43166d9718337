"""What was meant by a field that there is not."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel


def suggestion(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """The field of `model` that looks like the one at a validation error's `location`, or else all that may stand there."""
    *path, field = location
    fields = sorted({name for block in _blocks_at(model, path) for name in block.model_fields})
    close = get_close_matches(str(field), fields, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(fields)}"


def _blocks_at(model: type[BaseModel], path: Sequence[str | int]) -> Sequence[type[BaseModel]]:
    blocks = [model]
    for part in path:
        below = [inner for block in blocks for inner in _below(block, part)]
        # Otherwise `part` is the index of an item, or the label of a plain union's member: the block is the same.
        blocks = below or [block for block in blocks if _is_kind(block, part)] or blocks
    return blocks


def _below(block: type[BaseModel], field: str | int) -> Iterator[type[BaseModel]]:
    found = block.model_fields.get(str(field))
    return _models(found.annotation) if found else iter(())


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a value of this type holds, itself or inside."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _is_kind(block: type[BaseModel], tag: str | int) -> bool:
    kind = block.model_fields.get("kind")
    return kind is not None and tag in get_args(kind.annotation)
