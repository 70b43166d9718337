"""Components of installed packages, found through entry points, and their versions.

A package `ourlab` that declares

    [project.entry-points."fedq.algorithms"]
    fedexp = "ourlab.fedexp:FedExp"

adds the kind `ourlab/fedexp`. Entry points are read once per process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any, Literal, NamedTuple

from pydantic import create_model

from fedcore.block import Block, kind_of
from fedcore.errors import ExtensionError

PREFIX = "fedq."
INTERFACE = (1, 0)
"""Version of `fedq.extensions`: components of the same major version and no later minor version work."""


class Package(NamedTuple):
    """An installed distribution that defines a component."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class PackageComponent(NamedTuple):
    """A component of an installed package."""

    kind: str
    package: Package
    entry: EntryPoint


def package_components(found: Sequence[Distribution]) -> dict[str, dict[str, PackageComponent]]:
    """The components of the distributions `found`, by family and kind.

    Raises ExtensionError where two distributions define the same kind.
    """
    components: dict[str, dict[str, PackageComponent]] = {}
    for distribution in found:
        for entry in distribution.entry_points:
            if not entry.group.startswith(PREFIX):
                continue
            package = Package(distribution.name, distribution.version)
            kind = f"{entry.module.partition('.')[0]}/{entry.name}"
            family = components.setdefault(entry.group.removeprefix(PREFIX), {})
            other = family.get(kind)
            if other is not None and other.package.name != package.name:
                raise ExtensionError(
                    f"{other.package} and {package} both define {entry.group} {kind!r}; uninstall one of them"
                )
            # The first of several copies of a distribution on the path is the one that is imported.
            family.setdefault(kind, PackageComponent(kind, package, entry))
    return components


@cache
def installed() -> dict[str, dict[str, PackageComponent]]:
    """The components of all installed packages, by family and kind; raises ExtensionError."""
    return package_components(list(distributions()))


@cache
def installed_classes(family: str, base: type[Block]) -> tuple[type[Any], ...]:
    """The components of a family that packages add, with their kinds `package/name`.

    Raises ExtensionError where one cannot be used.
    """
    return tuple(_loaded(component, base) for component in installed().get(family, {}).values())


def _loaded(component: PackageComponent, base: type[Block]) -> type[Any]:
    entry, package = component.entry, component.package
    try:
        found = entry.load()
    except Exception as error:
        raise ExtensionError(
            f"{package}: {entry.value} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ExtensionError(f"{package}: {entry.value} must be a subclass of {base.__name__}")
    if kind_of(found) != entry.name:
        raise ExtensionError(f"{package}: {entry.value} has kind {kind_of(found)!r}, not {entry.name!r}")
    _check_interface(package, found)
    return with_kind(found, component.kind)


def with_kind(component: type[Any], kind: str) -> type[Any]:
    """The same component under another kind."""
    literal: Any = Literal[kind]
    return create_model(
        component.__name__,
        __base__=component,
        __module__=component.__module__,
        __doc__=component.__doc__,
        kind=(literal, kind),
    )


def _check_interface(package: Package, found: type[Block]) -> None:
    wanted = found.interface
    if wanted is None:
        return
    major, _, minor = wanted.partition(".")
    if int(major) != INTERFACE[0] or int(minor or 0) > INTERFACE[1]:
        raise ExtensionError(
            f"{package} needs version {wanted} of fedq.extensions; this is {INTERFACE[0]}.{INTERFACE[1]}"
        )
