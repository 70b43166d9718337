"""The checks that FedQ's own components pass, and what makes this one right."""

from fedcore.testing import component_checks

from power_of_choice import PowerOfChoice


@component_checks(PowerOfChoice)
def test_power_of_choice_passes(check):
    check()
