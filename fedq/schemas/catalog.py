"""Presets, and the kinds of every block."""

from typing import Any

from fedq.schemas.base import Schema


class PresetSummary(Schema):
    """A preset, as listed."""

    name: str
    """Name of the preset."""
    version: int
    """Version number, increased when the specification changes."""
    title: str
    """Short description."""
    source: str
    """Publication, table or figure that the preset follows, or a description of the
    demonstration.
    """
    departures: list[str]
    """Differences from the source."""
    sheet: str
    """Figure, table or demonstration that the preset belongs to; `fedq reproduce-paper` runs all of
    it.
    """
    panel: str
    """Panel of the figure or table; empty if there is only one."""
    small: bool
    """True for the small version, which takes a minute or two on two cores."""


class Preset(PresetSummary):
    """A preset with its specification."""

    specification: dict[str, Any]
    """The specification, without overrides."""


class PresetList(Schema):
    """All presets."""

    items: list[PresetSummary]
    """The presets, by name."""


class Kind(Schema):
    """One choice for a block of the specification."""

    kind: str
    """The value of the block's `kind`."""
    description: str
    """Description of the kind."""
    source: str | None
    """Publication that describes it."""
    defaults: dict[str, Any]
    """Default values of its fields; fields without a default are required."""
    json_schema: dict[str, Any]
    """JSON Schema of the block."""


class CatalogBlock(Schema):
    """A block of the specification with several kinds."""

    path: str
    """Dotted path of the block, as used in a sweep."""
    kinds: list[Kind]
    """Available kinds."""


class Catalog(Schema):
    """All components of a specification."""

    blocks: list[CatalogBlock]
    """Blocks with several kinds."""
    measures: list[str]
    """Valid values of `evaluation.measures`."""
    json_schema: dict[str, Any]
    """JSON Schema of the complete specification."""
