"""`/v1/presets`: named, versioned specifications."""

from typing import Annotated

from fastapi import Path

from api.http.authentication import Reader
from api.http.problems import responses
from api.http.routing import Router
from fedcore import presets
from fedq.schemas import Preset, PresetList, PresetSummary

router = Router(prefix="/v1/presets", tags=["catalogue"])

Name = Annotated[str, Path(description="Name of the preset.", examples=["demo"])]


@router.get("", summary="List presets")
def read_presets(_principal: Reader) -> PresetList:
    """Return the presets by name. Submit one with `{"preset": name, "overrides": {...}}`."""
    return PresetList(items=[PresetSummary.model_validate(presets.load(name)) for name in presets.names()])


@router.get("/{name}", responses=responses(404, 422), summary="Read a preset")
def read_preset(_principal: Reader, name: Name) -> Preset:
    """Return a preset with its specification."""
    preset = presets.load(name)
    return Preset(**PresetSummary.model_validate(preset).model_dump(), specification=preset.spec)
