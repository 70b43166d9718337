"""Components of installed packages, found through entry points, and their versions.

A package `ourlab` that declares

    [project.entry-points."fedq.algorithms"]
    fedexp = "ourlab.fedexp:FedExp"

adds the kind `ourlab/fedexp`. Entry points are read once per process.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import create_model

from fedcore.block import Block, kind_of
from fedcore.errors import ExtensionError

PREFIX = "fedq."
INTERFACE = (2, 0)
"""Version of `fedq.extensions`: components of the same major version and no later minor version work."""


_KIND = re.compile("[a-z][a-z0-9_]*")


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
def find_installed() -> dict[str, dict[str, PackageComponent]]:
    """The components of all installed packages, by family and kind; raises ExtensionError."""
    return package_components(list(distributions()))


@cache
def installed_packages() -> tuple[Package, ...]:
    """The installed packages that define components, by name."""
    return tuple(sorted({one.package for family in find_installed().values() for one in family.values()}))


def forget_components(is_gone: Callable[[PackageComponent], bool]) -> None:
    """Let this process know no longer the components of packages that `is_gone`, whose modules were
    replaced.
    """
    for family in find_installed().values():
        for kind in [kind for kind, component in family.items() if is_gone(component)]:
            del family[kind]
    installed_packages.cache_clear()
    installed_classes.cache_clear()


def is_of_package(member: type[Block]) -> bool:
    """True for a component of a package."""
    return "/" in kind_of(member)


def encode_packages(packages: Iterable[Package]) -> str | None:
    """The packages that a run uses, as its row names them: a JSON list, or None if there are none."""
    names = sorted({str(package) for package in packages})
    return json.dumps(names) if names else None


@cache
def file_digest(name: str) -> str:
    """SHA-256 over paths and contents of the installed files of a distribution; if it is editable
    or has no list of files, over the files of its packages with components.
    """
    total = hashlib.sha256()
    for path, file in sorted(_files(name)):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{path}\0{content}\n".encode())
    return total.hexdigest()


def _files(name: str) -> list[tuple[str, Path]]:
    found = next(one for one in distributions() if one.name == name)
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if found.files and not origin.get("dir_info", {}).get("editable"):
        # Metadata say how it was installed, and scripts (in `../../bin`) where.
        listed = [
            path for path in found.files if not path.parts[0].endswith((".dist-info", ".egg-info", ".."))
        ]
        files = [(path.as_posix(), Path(str(path.locate()))) for path in listed]
    else:
        modules = {
            entry.module.partition(".")[0] for entry in found.entry_points if entry.group.startswith(PREFIX)
        }
        files = [file for module in modules for file in _files_of_module(module)]
    return [(path, file) for path, file in files if file.suffix != ".pyc" and file.is_file()]


def _files_of_module(name: str) -> list[tuple[str, Path]]:
    found = find_spec(name)
    assert found is not None
    folders = [Path(folder) for folder in found.submodule_search_locations or ()]
    if not folders and found.origin:
        return [(Path(found.origin).name, Path(found.origin))]
    return [
        (file.relative_to(folder.parent).as_posix(), file) for folder in folders for file in folder.rglob("*")
    ]


@cache
def installed_classes(family: str, base: type[Block]) -> tuple[type[Any], ...]:
    """The components of a family that packages add, with their kinds `package/name`.

    Raises ExtensionError where one cannot be used.
    """
    return tuple(_loaded(component, base) for component in find_installed().get(family, {}).values())


def _loaded(component: PackageComponent, base: type[Block]) -> type[Any]:
    entry, package = component.entry, component.package
    had_torch = "torch" in sys.modules
    try:
        found = entry.load()
    except Exception as error:
        raise ExtensionError(
            f"{package}: {entry.value} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if "torch" in sys.modules and not had_torch:
        raise ExtensionError(
            f"{package}: {entry.value} imports torch when it is imported; import torch in the functions that"
            " use it"
        )
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ExtensionError(f"{package}: {entry.value} must be a subclass of {base.__name__}")
    if not _KIND.fullmatch(entry.name):
        raise ExtensionError(
            f"{package}: the kind {entry.name!r} must consist of lower-case letters, digits and _, and begin"
            " with a letter"
        )
    if kind_of(found) != entry.name:
        raise ExtensionError(f"{package}: {entry.value} has kind {kind_of(found)!r}, not {entry.name!r}")
    _check_interface(package, found)
    return with_kind(found, component.kind)


def with_kind(component: type[Any], kind: str) -> type[Any]:
    """A subclass of the component under another kind."""
    literal: Any = Literal[kind]
    # Two classes of one name would change the name of a built-in one in the OpenAPI document.
    return create_model(
        re.sub(r"\W|_", "", kind.title()),
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
