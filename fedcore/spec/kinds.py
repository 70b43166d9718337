"""The blocks of a specification that have several kinds, read from its classes."""

from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel

from fedcore.block import Block
from fedcore.families import models_of
from fedcore.spec.experiment import ExperimentSpec


@cache
def kinds() -> Mapping[str, tuple[type[Block], ...]]:
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
