"""Puts the packages of the service into its wheel.

They lie beside this project. An editable installation refers to them instead (`dev-mode-dirs`).
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("api", "workers", "migrations")


class ServiceHook(BuildHookInterface[Any]):
    """Adds the packages to a wheel that is not editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders to include."""
        if version == "standard":
            root = Path(self.root).parents[1]
            build_data["force_include"] = {str(root / name): name for name in PACKAGES}
