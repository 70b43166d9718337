"""The checks that FedQ's own components pass, and what makes this one right."""

from fedcore.testing import component_checks

from centred_clipping import CentredClipping


@component_checks(CentredClipping)
def test_centred_clipping_passes(check):
    check()
