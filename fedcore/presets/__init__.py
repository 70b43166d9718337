"""Presets: named, versioned specifications that ship with FedQ, one YAML file for each figure,
table or demonstration.
"""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

from fedcore.block import Block
from fedcore.errors import PresetNotFoundError
from fedcore.presets.sheet import Sheet, Variant, list_variants
from fedcore.spec import yaml_documents

SUFFIX = ".yaml"
DIGEST_LENGTH = 16


class PresetSpec(Block):
    """A specification with where it comes from."""

    name: str
    """The sheet's name, with that of its panel and `small` behind it where it has those."""
    version: int
    """Version number, increased when the specification changes."""
    title: str
    """Short description."""
    source: str
    """The publication, table or figure it follows."""
    departures: tuple[str, ...] = ()
    """Differences from the source."""
    spec: dict[str, Any]
    """The specification, as a document."""
    sheet: str
    """The figure, table or demonstration that it is of."""
    panel: str = ""
    """The part of it, where it has several."""
    small: bool = False
    """True for the small form, which takes a minute or two on two cores."""

    @property
    def digest(self) -> str:
        """Digest of the specification: equal specifications have the same."""
        return sha256(json.dumps(self.spec, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]


def names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(_all())


def load(name: str) -> PresetSpec:
    """Load the preset `name`; raises PresetNotFoundError."""
    if name not in _all():
        raise PresetNotFoundError(
            f"there is no preset {name!r}; {_nearest(name, names())} (of {len(names())})"
        )
    return _all()[name]


@cache
def sheets() -> dict[str, Sheet]:
    """Load all sheets, by name."""
    files = sorted(resources.files(__name__).iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(SUFFIX): Sheet.model_validate(
            yaml_documents.load(file.read_text(encoding="utf-8"))
        )
        for file in files
        if file.name.endswith(SUFFIX)
    }


def sheet(name: str) -> Sheet:
    """Load the sheet `name`; raises PresetNotFoundError."""
    if name not in sheets():
        raise PresetNotFoundError(
            f"there is no figure or table {name!r}; {_nearest(name, sheets())}; see `fedq reproduce` for all"
        )
    return sheets()[name]


def presets_of(name: str, *, small: bool) -> list[PresetSpec]:
    """Return the presets of a sheet in one form, one per panel; panels without a small form are in
    full.
    """
    wanted = sheet(name)
    have = set(list_variants(wanted))
    return [
        _preset(name, wanted, Variant(panel, small=small and Variant(panel, small=True) in have))
        for panel in wanted.parts
    ]


def meant_by(name: str, *, small: bool) -> list[PresetSpec]:
    """Return the presets meant by `name`: the presets of a sheet, or of the sheet that also shows
    this figure or table, or the preset itself.

    Raises PresetNotFoundError.
    """
    shown = {also: other for other, sheet in sheets().items() for also in sheet.also}
    if name in sheets() or name in shown:
        return presets_of(shown.get(name, name), small=small)
    if name not in _all():
        raise PresetNotFoundError(
            f"there is no figure or table {name!r}; {_nearest(name, [*sheets(), *shown])}; see `fedq"
            " reproduce` for all"
        )
    preset = load(name)
    return [one for one in presets_of(preset.sheet, small=small or preset.small) if one.panel == preset.panel]


def override(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `document` (RFC 7396): blocks merge, null removes, anything else
    replaces.

    A block whose `kind` changes is replaced whole, since the old kind's fields mean nothing to the
    new one.
    """
    merged = dict(document)
    for key, value in changes.items():
        old = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif (
            isinstance(value, dict)
            and isinstance(old, dict)
            and value.get("kind", old.get("kind")) == old.get("kind")
        ):
            merged[key] = override(old, value)
        else:
            merged[key] = value
    return merged


def _nearest(name: str, known: Iterable[str]) -> str:
    return "the nearest are " + ", ".join(get_close_matches(name, known, n=3, cutoff=0.0))


@cache
def _all() -> dict[str, PresetSpec]:
    made = [
        _preset(name, sheet, variant) for name, sheet in sheets().items() for variant in list_variants(sheet)
    ]
    return {preset.name: preset for preset in made}


def _preset(name: str, sheet: Sheet, variant: Variant) -> PresetSpec:
    panel = sheet.parts[variant.panel]
    smaller = [small for small in (sheet.small, panel.small) if small and variant.small]
    spec = override(sheet.spec, panel.changes)
    for small in smaller:
        spec = override(spec, small.changes)
    full_name = name + variant.suffix
    return PresetSpec(
        name=full_name,
        version=sheet.version,
        title=f"{sheet.title}: {panel.title}" if sheet.panels else sheet.title,
        source=sheet.source,
        departures=(
            *sheet.departures,
            *panel.departures,
            *(departure for small in smaller for departure in small.departures),
        ),
        spec={"name": full_name} | spec,
        sheet=name,
        panel=variant.panel,
        small=variant.small,
    )
