"""The blocks of a specification that have several kinds, read from its classes."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from fedcore.block import Block
from fedcore.spec.experiment import ExperimentSpec


@cache
def kinds() -> Mapping[str, tuple[type[Block], ...]]:
    """The kinds of each block by its dotted path, in the order of the fields."""
    return dict(_blocks(ExperimentSpec, ""))


def _blocks(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, tuple[type[Block], ...]]]:
    for name, field in model.model_fields.items():
        path, members = f"{prefix}{name}", _members(field.annotation)
        choices = tuple(member for member in members if "kind" in member.model_fields)
        if choices:
            yield path, choices
        elif members:
            yield from _blocks(members[0], f"{path}.")


def _members(annotation: Any) -> list[type[Block]]:
    """The blocks that a field may hold; none for a scalar or a list."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (list, tuple, dict, Literal, None):
        return []
    return [
        member for choice in get_args(annotation) if choice is not NoneType for member in _members(choice)
    ]
