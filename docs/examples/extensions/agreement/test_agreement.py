"""The checks that FedQ's own components pass, and what makes this one right."""

from fedcore.testing import component_checks

from agreement import Agreement


@component_checks(Agreement)
def test_agreement_passes(check):
    check()
