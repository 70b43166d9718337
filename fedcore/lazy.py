"""Modules that are imported on first use.

Specifications stand beside their mathematics, and are read by processes that load neither NumPy nor
PyTorch, which take 0.1 and 2 seconds to import.
"""

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for the module `name`; type checkers are given the module itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
