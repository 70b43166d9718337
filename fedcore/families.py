"""Families of components: the kinds that a block of a specification may have.

A component is one class with specification, mathematics, example and documentation. Its family
finds it by `kind` when a document is validated: among the built-in kinds, the kinds of installed
packages (`fedcore/packages.py`), and the kinds whose objects were used in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

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
from fedcore.packages import installed_classes, with_kind

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
        """`name` names the entry points `fedq.<name>`; `default_kind` may be omitted in documents;
        `convert` makes a component of an object of another class.
        """
        self.name, self.base, self.builtin = name, base, tuple(builtin)
        self.default_kind, self._convert = default_kind, convert
        self._of_objects: dict[str, type[C]] = {}

    def __iter__(self) -> Iterator[type[C]]:
        """The registered components: built-in ones in documentation order, then components of
        installed packages.
        """
        yield from self.builtin
        yield from installed_classes(self.name, self.base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, member: object) -> bool:
        """True for registered components, whose documents other processes understand, too."""
        return member in tuple(self)

    def find(self, kind: str) -> type[C] | None:
        """The component with this kind, or of an object with it, or the stand-in for one of a bundle; None
        if there is none.
        """
        return _by_kind(self.known()).get(kind) or self._stand_in(kind)

    def known(self) -> tuple[type[C], ...]:
        """The components that this process knows: registered ones, and classes of objects used in
        it.
        """
        return (*self, *self._of_objects.values())

    def _stand_in(self, kind: object) -> type[C] | None:
        """The stand-in for a kind of a bundle, made for those alone that are asked for: a bundle may have
        a thousand.
        """
        if kind not in _BUNDLE_KINDS.get().get(self.name, ()) or kind == self.default_kind:
            return None
        return None if kind in _by_kind(self.known()) else _stand_in(self.base, str(kind))

    def note(self, instance: C) -> C:
        """Make the class of an object known by its kind; returns the object, or one of the same fields
        with the kind `package/kind` if its class is a component of an installed package.

        Raises ValueError if another component has the kind.
        """
        for installed in installed_classes(self.name, self.base):
            if installed.__base__ is type(instance):
                given = instance.model_fields_set - {"kind"}
                return cast("C", installed(**{name: getattr(instance, name) for name in given}))
        self.note_class(type(instance))
        return instance

    def note_class(self, member: type[C]) -> None:
        """Make a class known by its kind in this process, unless it is a stand-in, which only the
        specifications of its bundle may use.

        Raises ValueError if another component has the kind.
        """
        if member in self or issubclass(member, StandIn):
            return
        kind = kind_of(member)
        taken = self.find(kind)
        if (taken is not None and taken in self) or kind == self.default_kind:
            of = "the default" if taken is None else f"that of {taken.__name__}"
            raise ValueError(f"kind {kind!r} of {member.__name__} is {of}; choose another kind")
        self._of_objects[kind] = member

    def kinds(self) -> tuple[str, ...]:
        """The kinds known now, including a bundle's."""
        return tuple(dict.fromkeys((*_by_kind(self.known()), *_BUNDLE_KINDS.get().get(self.name, ()))))

    def validate(self, value: Any, context: Any = None) -> C:
        """The component that `value`, a document or an object, stands for; raises ValidationError."""
        value = self._convert(value)
        if isinstance(value, self.base):
            return self.note(value)
        stand_in = self._stand_in(value.get("kind")) if isinstance(value, dict) else None
        adapter = self.adapter() if stand_in is None else _alone(stand_in)
        return cast("C", adapter.validate_python(value, context=context))

    def adapter(self) -> TypeAdapter[C]:
        """Validates documents of the kinds that this process has loaded."""
        return _union(self.known(), self.default_kind)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def validate(value: Any, info: core_schema.ValidationInfo) -> C:
            return self.validate(value, info.context)

        return core_schema.with_info_plain_validator_function(validate, serialization=AS_THE_OBJECT)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(_union(tuple(self), self.default_kind).core_schema)


def _by_kind(members: Sequence[type[C]]) -> dict[str, type[C]]:
    """The components that have a kind; of two with the same, the first."""
    found: dict[str, type[C]] = {}
    for member in members:
        if "kind" in member.model_fields:
            found.setdefault(kind_of(member), member)
    return found


_BUNDLE_KINDS: ContextVar[Mapping[str, Sequence[str]]] = ContextVar(
    "bundle kinds", default=MappingProxyType({})
)


@contextmanager
def bundle_kinds(kinds: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Within the block, families know these kinds of a code bundle, by family, beside those of blocks
    around it.

    If this process has not loaded the bundle, their components are stand-ins, which hold the fields
    of documents and no mathematics.
    """
    outer = _BUNDLE_KINDS.get()
    token = _BUNDLE_KINDS.set(
        {name: (*outer.get(name, ()), *kinds.get(name, ())) for name in {*outer, *kinds}}
    )
    try:
        yield
    finally:
        _BUNDLE_KINDS.reset(token)


class StandIn:
    """A component of a code bundle that this process has not loaded, or of a package that is not installed:
    any fields, no mathematics.
    """


@lru_cache(maxsize=256)
def _stand_in(base: type[Any], kind: str) -> type[Any]:
    namespace = {
        "model_config": {"extra": "allow"},
        "__module__": base.__module__,
        "__doc__": StandIn.__doc__,
    }
    return with_kind(type(base.__name__, (base, StandIn), namespace), kind)


@lru_cache(maxsize=256)
def _alone(member: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(member)


def _dumped(value: Any, dump: Callable[[Any], Any]) -> Any:
    if isinstance(value, BaseModel):
        type(value).model_rebuild()  # Before 2.14, Pydantic does not complete a deferred class here.
    return dump(value)


AS_THE_OBJECT = core_schema.wrap_serializer_function_ser_schema(_dumped, schema=core_schema.any_schema())
"""Serialises a field by the class of its value."""


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


def models_of(field: FieldInfo, *, registered: bool = False) -> list[type[BaseModel]]:
    """The classes of the models that the value of a field may be or contain, in order; of components
    those known in this process, or only the `registered` ones.
    """
    return _models_in(field.annotation, field.metadata, registered=registered)


def _models_in(annotation: Any, metadata: Sequence[Any] = (), *, registered: bool) -> list[type[BaseModel]]:
    family = next((item for item in metadata if isinstance(item, Family)), None)
    if family is not None:
        return list(family if registered else family.known())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner, others = get_args(annotation), ()
    if get_origin(annotation) is Annotated:
        inner, others = inner[:1], inner[1:]
    return [model for choice in inner for model in _models_in(choice, others, registered=registered)]


class Names:
    """Annotation of a string that must be one of names to which extensions add."""

    def __init__(
        self, names: Callable[[], Sequence[str]], explain: Callable[[Any], str | None] = lambda _: None
    ) -> None:
        """`names` returns the names known now; `explain` may say why a value is none of them."""
        self._names, self._explain = names, explain

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def validate(value: Any) -> str:
            if reason := self._explain(value):
                raise ValueError(reason)
            return one_of(self._names()).validate_python(value)

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.to_string_ser_schema()
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(one_of(self._names()).core_schema)


def one_of(names: Sequence[str]) -> TypeAdapter[str]:
    """Validates that a string is one of `names`."""
    return _literal(tuple(names))


@lru_cache(maxsize=64)
def _literal(names: tuple[str, ...]) -> TypeAdapter[str]:
    literal: Any = Literal[names]
    return TypeAdapter(literal)
