"""`/v1/presets`, `/v1/catalog` and `/v1/schemas`: named, versioned specifications, and all choices of
a specification, derived from its types.
"""

import json
from functools import cache
from inspect import cleandoc
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from api.http.authentication import Reader
from api.http.problems import responses
from fedcore import presets
from fedcore.block import Block, kind_of
from fedcore.spec import ExperimentSpec
from fedcore.spec.evaluation import measure_names
from fedcore.spec.kinds import kinds
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
        blocks=[
            CatalogBlock(path=path, kinds=[_kind(member) for member in members])
            for path, members in kinds().items()
        ],
        measures=list(measure_names()),
        json_schema=ExperimentSpec.model_json_schema(),
    )


@router.get("/schemas/experiment.json", include_in_schema=False)
def read_experiment_schema() -> Response:
    """Return the JSON Schema of specifications, which editors read without a key."""
    return Response(_experiment_schema(), media_type="application/schema+json")


@cache
def _experiment_schema() -> bytes:
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | catalog().json_schema).encode()


def _kind(model: type[Block]) -> Kind:
    fields = model.model_fields
    return Kind(
        kind=kind_of(model),
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
