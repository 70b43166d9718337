"""Families of components: the kinds that a block of a specification may have.

A component is one class with specification, mathematics, example and documentation. Its family
finds it by `kind` when a document is validated: among the built-in kinds, those of installed
packages (`fedcore/packages.py`), and those whose objects were used in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
)
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from fedcore.block import Block, kind_of
from fedcore.packages import installed_classes

C = TypeVar("C", bound=Block)


class Family(Generic[C]):
    """The kinds of one block: `Annotated[AlgorithmSpec, ALGORITHMS]` is the type of a field.

    The field takes a document with a `kind`, or an object of a subclass of `base`. A class that is
    not registered is then known in this process by its kind, so that a dump of the object can be
    read again.
    """

    def __init__(
        self,
        name: str,
        base: type[C],
        builtin: Sequence[type[C]],
        *,
        default_kind: str | None = None,
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """`name` is that of the entry points `fedq.<name>`; `default_kind` may be omitted in
        documents; `convert` makes a component of an object of another class.
        """
        self.name, self.base, self.builtin = name, base, tuple(builtin)
        self._default_kind, self._convert = default_kind, convert
        self._of_objects: dict[str, type[C]] = {}

    def __iter__(self) -> Iterator[type[C]]:
        """The registered components: built-in ones in documentation order, then those of packages."""
        yield from self.builtin
        yield from installed_classes(self.name, self.base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_registered(self, member: type[C]) -> bool:
        """True if documents with the kind of `member` are understood by other processes, too."""
        return member in tuple(self)

    def note(self, instance: C) -> C:
        """Make the class of an object known by its kind; returns the object.

        Raises ValueError if the kind is that of another component.
        """
        member, kind = type(instance), kind_of(type(instance))
        if not self.is_registered(member):
            taken = next((known for known in self if kind_of(known) == kind), None)
            if taken is not None:
                raise ValueError(
                    f"kind {kind!r} of {member.__name__} is that of {taken.__name__}; choose another kind"
                )
            self._of_objects[kind] = member
        return instance

    def adapter(self) -> TypeAdapter[C]:
        """Validates documents of the kinds known now."""
        return _union((*self, *self._of_objects.values()), self._default_kind)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def validate(value: Any, info: core_schema.ValidationInfo) -> C:
            value = self._convert(value)
            if isinstance(value, self.base):
                return self.note(value)
            return self.adapter().validate_python(value, context=info.context)

        return core_schema.with_info_plain_validator_function(validate, serialization=_AS_THE_OBJECT)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(_union(tuple(self), self._default_kind).core_schema)


_AS_THE_OBJECT = core_schema.wrap_serializer_function_ser_schema(
    lambda value, dump: dump(value), schema=core_schema.any_schema()
)


@lru_cache(maxsize=64)
def _union(members: tuple[type[Any], ...], default_kind: str | None) -> TypeAdapter[Any]:
    if default_kind is None:
        by_kind: Any = Annotated[Union[members], Field(discriminator="kind")]  # noqa: UP007 - made at run time
        return TypeAdapter(by_kind)

    def kind(value: Any) -> str:
        given = value.get("kind", default_kind) if isinstance(value, dict) else None
        return str(given)

    tagged = tuple(
        Annotated[member, Tag(kind_of(member) if "kind" in member.model_fields else default_kind)]
        for member in members
    )
    by_tag: Any = Annotated[Union[tagged], Discriminator(kind)]  # noqa: UP007 - made at run time
    return TypeAdapter(by_tag)


def models_of(field: FieldInfo) -> list[type[BaseModel]]:
    """The classes of the models that the value of a field may be or contain, in order."""
    return _models_in(field.annotation, field.metadata)


def _models_in(annotation: Any, metadata: Sequence[Any] = ()) -> list[type[BaseModel]]:
    family = next((item for item in metadata if isinstance(item, Family)), None)
    if family is not None:
        return list(family)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner, others = get_args(annotation), ()
    if get_origin(annotation) is Annotated:
        inner, others = inner[:1], inner[1:]
    return [model for choice in inner for model in _models_in(choice, others)]
