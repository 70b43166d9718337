"""`/v1/presets`, `/v1/catalog` and `/v1/schemas`: named, versioned specifications, and all choices of
a specification, derived from its types.
"""

import json
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Path, Response

from api.http.authentication import Reader
from api.http.problems import describe_errors
from fedcore import presets
from fedq.catalogue import build_catalog
from fedq.schemas import Catalog, Preset, PresetList, PresetSummary

router = APIRouter(prefix="/v1", tags=["catalogue"])

Name = Annotated[str, Path(description="Name of the preset.", examples=["demo"])]


@router.get("/presets", summary="List presets")
def read_presets(_principal: Reader) -> PresetList:
    """Return the presets by name. Submit one with `{"preset": name, "overrides": {...}}`."""
    return PresetList(items=[PresetSummary.model_validate(presets.load(name)) for name in presets.names()])


@router.get("/presets/{name}", responses=describe_errors(404, 422), summary="Read a preset")
def read_preset(_principal: Reader, name: Name) -> Preset:
    """Return a preset with its specification."""
    preset = presets.load(name)
    return Preset(**PresetSummary.model_validate(preset).model_dump(), specification=preset.spec)


@router.get("/catalog", summary="Read the catalogue")
def read_catalog(_principal: Reader) -> Catalog:
    """Return all blocks with several kinds, each with its JSON schema, source and defaults."""
    return build_catalog()


@router.get("/schemas/experiment.json", include_in_schema=False)
def read_experiment_schema() -> Response:
    """Return the JSON Schema of specifications, which editors read without a key."""
    return Response(_experiment_schema(), media_type="application/schema+json")


@cache
def _experiment_schema() -> bytes:
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | build_catalog().json_schema).encode()
