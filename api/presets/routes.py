"""`/v1/presets` and `/v1/catalog`: named, versioned specifications, and all choices of a
specification, derived from its types.
"""

from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from fastapi import APIRouter, Path
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from api.http.authentication import Reader
from api.http.problems import responses
from fedcore import presets
from fedcore.spec import ExperimentSpec
from fedcore.spec.evaluation import Measure
from fedq.schemas import Catalog, CatalogBlock, Kind, Preset, PresetList, PresetSummary

router = APIRouter(prefix="/v1", tags=["catalogue"])

Name = Annotated[str, Path(description="Name of the preset.", examples=["demo"])]


@router.get("/presets", summary="List presets")
def read_presets(_principal: Reader) -> PresetList:
    """Return the presets by name. Submit one with `{"preset": name, "overrides": {...}}`."""
    return PresetList(items=[PresetSummary.model_validate(presets.load(name)) for name in presets.names()])


@router.get("/presets/{name}", responses=responses(404, 422), summary="Read a preset")
def read_preset(_principal: Reader, name: Name) -> Preset:
    """Return a preset with its specification."""
    preset = presets.load(name)
    return Preset(**PresetSummary.model_validate(preset).model_dump(), specification=preset.spec)


@router.get("/catalog", summary="Read the catalogue")
def read_catalog(_principal: Reader) -> Catalog:
    """Return all blocks with several kinds, each with its JSON schema, source and defaults."""
    return catalog()


@cache
def catalog() -> Catalog:
    """The catalogue; it is the same for the life of the process."""
    return Catalog(
        blocks=list(_blocks(ExperimentSpec, "")),
        measures=list(get_args(Measure)),
        json_schema=ExperimentSpec.model_json_schema(),
    )


def _blocks(model: type[BaseModel], prefix: str) -> Iterator[CatalogBlock]:
    """Yield the choices among `model`'s fields and below, depth first, in the order of the fields."""
    for name, field in model.model_fields.items():
        path, members = f"{prefix}{name}", _members(field.annotation)
        if any("kind" in member.model_fields for member in members):
            yield CatalogBlock(
                path=path, kinds=[_kind(member) for member in members if "kind" in member.model_fields]
            )
        elif members:
            yield from _blocks(members[0], f"{path}.")


def _members(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a field may hold, unions and annotations unwrapped; none for a scalar
    or list.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (list, tuple, dict, Literal, None):
        return []
    return [
        member for choice in get_args(annotation) if choice is not NoneType for member in _members(choice)
    ]


def _kind(model: type[BaseModel]) -> Kind:
    fields = model.model_fields
    return Kind(
        kind=get_args(fields["kind"].annotation)[0],
        description=cleandoc(model.__doc__ or ""),
        source=getattr(model, "source", None),
        defaults={
            name: _default(field)
            for name, field in fields.items()
            if name != "kind" and not field.is_required()
        },
        json_schema=model.model_json_schema(),
    )


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
