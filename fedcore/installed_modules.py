"""Installed modules that have the name of a module of a bundle, such as an edited copy: replaced in the
process of the bundle, unless FedQ or a library that it uses may import them.
"""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from fedcore.errors import ExtensionError
from fedcore.packages import PackageComponent, find_installed, forget_components

FEDQ = ("fedq", "fedq-service")
"""Distributions of FedQ."""
OWN = frozenset({"api", "fedcore", "fedq", "migrations", "workers"})
"""Modules of FedQ."""


class _Replacements:
    """Finder of the modules that a bundle replaces, in its folder."""

    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self._folder, self.names = str(folder), frozenset(names)

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As importlib calls it: modules inside of a package are found by the package."""
        return PathFinder.find_spec(name, [self._folder]) if name in self.names else None


def replace_installed(folder: Path, names: Collection[str]) -> None:
    """Let `folder`, which is on the path, provide the top-level modules `names` of this process, where
    installed ones have these names.

    Packages whose modules are replaced, and those that require them, have no components in this process.
    Raises ExtensionError for a module that FedQ or a library that it uses may import.
    """
    taken = {name for name in names if not _is_found_in(folder, name)}
    for name in sorted(taken):
        user = _user_of(name)
        if user is not None:
            raise ExtensionError(
                f"the module {name} cannot take the place of the installed one, which {user}; rename the file"
                " or its folder"
            )
    if not taken:
        return
    owners = {owner for name in taken for owner in _owners_of(name)}

    def is_gone(component: PackageComponent) -> bool:
        required = _required([component.package.name])
        return _top(component.entry.module) in taken or not owners.isdisjoint(required)

    forget_components(is_gone)
    for name in [name for name in sys.modules if _top(name) in taken]:
        del sys.modules[name]
    finder: Any = _Replacements(folder, taken)
    sys.meta_path.insert(0, finder)
    invalidate_caches()


def is_replaced(name: str) -> bool:
    """True for a top-level module that a bundle provides in this process in place of an installed one."""
    return any(isinstance(finder, _Replacements) and name in finder.names for finder in sys.meta_path)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_found_in(folder: Path, name: str) -> bool:
    """True if an import of `name` leads to `folder`, possibly to parts of a namespace elsewhere, too."""
    module = sys.modules.get(name)
    found = find_spec(name) if module is None else getattr(module, "__spec__", None)
    places = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    return any(Path(place).is_relative_to(folder) for place in places if place)


def _user_of(name: str) -> str | None:
    """The reason why an installed module must stay, after "which"; None if it need not."""
    if name in sys.stdlib_module_names:
        return "is Python's own"
    if name in OWN:
        return "is FedQ's own"
    needed, owners = _required(FEDQ), _owners_of(name)
    is_listed = len(needed) > len(FEDQ)  # else FedQ itself is not installed, and nothing says what it needs
    if owners and not (is_listed and owners.isdisjoint(needed)):
        return f"FedQ or a library that it uses may import (from {', '.join(sorted(owners))})"
    return "FedQ has loaded" if not owners and name in sys.modules else None


@cache
def _owners_of(name: str) -> frozenset[str]:
    """Distributions that have a top-level module."""
    with_components = (
        component.package.name
        for family in find_installed().values()
        for component in family.values()
        if _top(component.entry.module) == name
    )
    return frozenset(map(_normalised, (*packages_distributions().get(name, ()), *with_components)))


def _required(names: Sequence[str]) -> frozenset[str]:
    """Distributions that those with these `names` require or can use, at any depth, and they themselves."""
    found: set[str] = set()
    waiting = [_normalised(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _requirements(name)
    return frozenset(found)


def _requirements(name: str) -> Iterator[str]:
    """Requirements of a distribution, of all extras and platforms: which are in use is not recorded."""
    try:
        listed = distribution(name).requires or ()
    except PackageNotFoundError:
        return
    for requirement in listed:
        found = re.match(r"[\w.-]+", requirement)
        assert found is not None
        yield _normalised(found[0])


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
