"""The specification of an experiment: the one document that HTTP, command line and Python share."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.spec.experiment import Arm, ExperimentSpec, stored_arms, stored_spec

__all__ = ["Arm", "ExperimentSpec", "stored_arms", "stored_spec"]


def __getattr__(name: str) -> Any:
    """Import on first use: the classes of all components take half a second to create."""
    if name not in __all__:
        raise AttributeError(f"module 'fedcore.spec' has no attribute {name!r}")
    return getattr(import_module("fedcore.spec.experiment"), name)
