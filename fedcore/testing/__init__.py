"""Checks of components, for extensions: the checks that built-in components pass in the test suite.

from fedcore.testing import component_checks
from ourlab import FedExp

@component_checks(FedExp)
def test_fedexp(check):
    check()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedcore.testing.finding import ExtensionReport, Finding

if TYPE_CHECKING:
    from fedcore.testing.checks import check_component, checks_of, component_checks
    from fedcore.testing.extension import check_extension
    from fedcore.testing.privacy.report import ArmAudit, PrivacyReport, audit_privacy

_MODULES = {
    "ArmAudit": "fedcore.testing.privacy.report",
    "PrivacyReport": "fedcore.testing.privacy.report",
    "audit_privacy": "fedcore.testing.privacy.report",
    "check_component": "fedcore.testing.checks",
    "check_extension": "fedcore.testing.extension",
    "checks_of": "fedcore.testing.checks",
    "component_checks": "fedcore.testing.checks",
}

__all__ = [
    "ArmAudit",
    "ExtensionReport",
    "Finding",
    "PrivacyReport",
    "audit_privacy",
    "check_component",
    "check_extension",
    "checks_of",
    "component_checks",
]


def __getattr__(name: str) -> Any:
    """Import the checks on first use: they need PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedcore.testing' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
