"""The checks that FedQ's own components pass, and what makes this one right."""

from fedcore.testing import component_checks

from our_clipping import OurClipping


@component_checks(OurClipping)
def test_our_clipping_passes(check):
    check()
