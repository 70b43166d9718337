"""Presets: named, versioned specifications that ship with FedQ, one YAML file each."""

from importlib import resources
from typing import Any

from fedcore import yamls
from fedcore.errors import PresetNotFoundError
from fedcore.spec.base import Block

SUFFIX = ".yaml"


class Preset(Block):
    """A specification with where it comes from."""

    name: str
    """The file's name without its suffix."""
    version: int
    """Goes up when the specification changes."""
    title: str
    """What it shows."""
    source: str
    """The publication, table or figure it follows."""
    departures: tuple[str, ...] = ()
    """Where it differs from its source."""
    spec: dict[str, Any]
    """The specification, as a document."""


def names() -> list[str]:
    """The names of all presets, sorted."""
    return sorted(file.name.removesuffix(SUFFIX) for file in resources.files(__name__).iterdir() if file.name.endswith(SUFFIX))


def load(name: str) -> Preset:
    """The preset `name`; raises PresetNotFoundError."""
    if name not in names():
        raise PresetNotFoundError(f"there is no preset {name!r}; there are {', '.join(names())}")
    text = resources.files(__name__).joinpath(name + SUFFIX).read_text(encoding="utf-8")
    return Preset.model_validate({"name": name, **yamls.load(text)})


def override(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`document` with `changes` merged in (RFC 7396): blocks merge, null removes, anything else replaces.

    A block whose `kind` changes is replaced whole, since the old kind's fields mean nothing to the new one.
    """
    merged = dict(document)
    for key, value in changes.items():
        old = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(old, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            merged[key] = override(old, value)
        else:
            merged[key] = value
    return merged
