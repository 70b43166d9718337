"""The checks that FedQ's own components pass, and what makes this one right."""

from fedcore.testing import component_checks

from our_fedexp import OurFedexp


@component_checks(OurFedexp)
def test_our_fedexp_passes(check):
    check()
