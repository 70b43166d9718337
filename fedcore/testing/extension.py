"""Checks of all components of a folder or an installed package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from fedcore import bundles
from fedcore.block import Block, kind_of
from fedcore.errors import ExtensionError
from fedcore.packages import PREFIX, find_installed
from fedcore.spec.components import FAMILIES
from fedcore.testing.checks import checks_of, results_of
from fedcore.testing.finding import CheckResult, ComponentReport, ExtensionReport, Finding
from fedcore.user_traceback import user_traceback

_NOT_A_FIELD = re.compile(r"non-annotated attribute was detected: `(\w+) =")
"""Pydantic's message on a class attribute that the base class does not declare."""

Components = Mapping[str, Mapping[str, type[Block]]]
"""Classes by family and kind."""


def check_extension(extension: str, data_dir: Path | None = None) -> ExtensionReport:
    """Check the components of a folder, or of an installed package or distribution with this name.

    Modules of a folder are imported as a code bundle's are. Files of data sets are read from
    `data_dir` (default: DATA_DIR).

    Raises ExtensionError if there is no such package, or no component in it.
    """
    folder = Path(extension)
    findings: list[Finding] = []
    if folder.is_dir():
        try:
            found: Components = bundles.load(folder, {name: family.base for name, family in FAMILIES.items()})
        except ExtensionError:
            raise
        except Exception as error:
            return ExtensionReport(
                extension=extension, passed=False, components=[], findings=[_not_imported(error, folder)]
            )
        findings += _undeclared(folder, found)
    else:
        found = _installed(extension)
    components = [
        _report(family, member, data_dir) for family, members in found.items() for member in members.values()
    ]
    findings += [result.finding for component in components for result in component.results if result.finding]
    return ExtensionReport(extension=extension, passed=not findings, components=components, findings=findings)


def _report(family: str, member: type[Block], data_dir: Path | None) -> ComponentReport:
    return ComponentReport(
        family=family,
        kind=kind_of(member),
        component=f"{member.__module__}.{member.__name__}",
        results=[
            CheckResult(check=check.name, finding=finding)
            for check, finding in results_of(checks_of(member, family, data_dir))
        ],
    )


def _not_imported(error: Exception, folder: Path) -> Finding:
    told = user_traceback(error, folder.absolute())
    attribute = _NOT_A_FIELD.search(told.message)
    near = get_close_matches(attribute[1], _declarations(), 1) if attribute else []
    cause = "a mistake in the line named, or a package that is not installed"
    if attribute:
        cause = f"a misspelt class attribute; did you mean `{near[0]}`?" if near else "a field without a type"
    return Finding(
        check="the modules are imported",
        expected="the modules of the folder to be imported",
        found=f"{told.type}: {told.message}",
        cause=cause,
        file=told.file and str(folder / told.file),
        line=told.line,
    )


def _declarations() -> set[str]:
    """Class attributes of all families' base classes."""
    return {name for family in FAMILIES.values() for name in dir(family.base) if name[0] != "_"}


def _installed(name: str) -> Components:
    """The components of an installed package; raises ExtensionError."""
    found: dict[str, dict[str, Any]] = {}
    for family, components in find_installed().items():
        for component in components.values():
            if name in (component.package.name, component.entry.module.partition(".")[0]):
                module = import_module(component.entry.module)
                found.setdefault(family, {})[component.entry.name] = getattr(module, component.entry.attr)
    if not found:
        raise ExtensionError(
            f"{name} is neither a folder nor an installed package that declares entry points {PREFIX}*"
        )
    return found


def _undeclared(folder: Path, found: Components) -> Iterator[Finding]:
    """A finding for each component that pyproject.toml of the folder, if there is one, does not declare."""
    project = folder / "pyproject.toml"
    if not project.exists():
        return
    entries = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("entry-points", {})
    declared = {
        (group.removeprefix(PREFIX), name, value)
        for group, names in entries.items()
        for name, value in names.items()
    }
    for family, members in found.items():
        for kind, member in members.items():
            value = f"{member.__module__}:{member.__name__}"
            families = [other for other, classes in found.items() if classes.get(kind) is member]
            if not any((other, kind, value) in declared for other in families):
                yield Finding(
                    check="the package declares its components",
                    expected=f'[project.entry-points."{PREFIX}{family}"] {kind} = "{value}"',
                    found="no such entry point",
                    cause="the class or its kind was renamed, or the entry point is missing",
                    file=str(project),
                    line=1,
                )
