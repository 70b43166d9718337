"""The checks that FedQ's own components pass, and what makes this one right."""

from fedcore.testing import component_checks

from client_gap import ClientGap


@component_checks(ClientGap)
def test_client_gap_passes(check):
    check()
