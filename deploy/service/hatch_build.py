"""Puts the packages of the service into its wheel.

They lie beside this project. An editable installation refers to them instead (`dev-mode-dirs`).
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("api", "workers", "migrations")
LEFT_OUT = frozenset({"__pycache__", "generated", "node_modules"})
"""Folders that tools leave in a checkout."""


class ServiceHook(BuildHookInterface[Any]):
    """Adds the packages to a wheel that is not editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders to include."""
        if version == "standard":
            root = Path(self.root).parents[1]
            files = (path.relative_to(root) for name in PACKAGES for path in (root / name).rglob("*"))
            build_data["force_include"] = {
                str(root / file): file.as_posix()
                for file in sorted(files)
                if not LEFT_OUT.intersection(file.parts) and (root / file).is_file()
            }
