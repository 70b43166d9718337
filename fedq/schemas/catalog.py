"""What can be asked for: presets, and the kinds of every block."""

from typing import Any

from fedq.schemas.base import Schema


class PresetSummary(Schema):
    """A preset, as listed."""

    name: str
    """What to submit it by."""
    version: int
    """Goes up when the specification changes."""
    title: str
    """What it shows."""
    source: str
    """The publication, table or figure it follows; for a demonstration, what it is."""
    departures: list[str]
    """Where it differs from its source."""
    sheet: str
    """The figure, table or demonstration that it is of; `fedq reproduce-paper` takes it whole."""
    panel: str
    """The part of it; empty where it has one only."""
    small: bool
    """Whether it is the form that takes a minute or two on two cores."""


class Preset(PresetSummary):
    """A preset with its specification."""

    specification: dict[str, Any]
    """What is submitted, before any overrides."""


class PresetList(Schema):
    """All presets."""

    items: list[PresetSummary]
    """The presets, by name."""


class Kind(Schema):
    """One choice for a block of the specification."""

    kind: str
    """The value of the block's `kind`."""
    description: str
    """What it does."""
    source: str | None
    """The publication it follows."""
    defaults: dict[str, Any]
    """Its fields' values when they are left out; a field that is not listed is required."""
    json_schema: dict[str, Any]
    """JSON Schema of the block."""


class CatalogBlock(Schema):
    """A block of the specification that offers a choice."""

    path: str
    """Where it stands, dotted, as a sweep would name it."""
    kinds: list[Kind]
    """What it may be."""


class Catalog(Schema):
    """Everything that can be asked for."""

    blocks: list[CatalogBlock]
    """The blocks with a choice."""
    measures: list[str]
    """What `evaluation.measures` may list."""
    json_schema: dict[str, Any]
    """JSON Schema of a whole specification."""
