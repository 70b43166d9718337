"""Blocks of a specification, and the kinds of those that have several, read from its classes."""

from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel

from fedcore.block import Block
from fedcore.families import models_of
from fedcore.packages import is_of_package
from fedcore.spec.experiment import ExperimentSpec


@cache
def list_kinds() -> Mapping[str, tuple[type[Block], ...]]:
    """The kinds of each block by its dotted path, in the order of the fields."""
    return dict(_blocks(ExperimentSpec, ""))


def _blocks(
    model: type[BaseModel], prefix: str, *, nested: bool = False
) -> Iterator[tuple[str, tuple[type[Block], ...]]]:
    for name, field in model.model_fields.items():
        path, members = f"{prefix}{name}", models_of(field, registered=True)
        choices = tuple(
            member for member in members if issubclass(member, Block) and "kind" in member.model_fields
        )
        if choices:
            yield path, choices
            # Where members have the same block, like `augmentation` of images, it is the same family.
            for member in choices:
                yield from _blocks(member, f"{path}.", nested=True)
        elif members and not nested:
            yield from _blocks(members[0], f"{path}.")


@cache
def block_classes() -> Mapping[str, type[Block]]:
    """The classes of all blocks that come with FedQ, by name."""
    found: dict[str, type[Block]] = {}
    waiting: list[type[BaseModel]] = [ExperimentSpec]
    while waiting:
        for field in waiting.pop().model_fields.values():
            for model in models_of(field, registered=True):
                if issubclass(model, Block) and model.__name__ not in found and not _is_added(model):
                    found[model.__name__] = model
                    waiting.append(model)
    return found


def _is_added(model: type[Block]) -> bool:
    return "kind" in model.model_fields and is_of_package(model)
