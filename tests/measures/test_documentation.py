"""Every measure is described in the reference, under its name."""

import pytest

from deploy.site import specification
from fedcore.measures import GROUPS, MEASURES

PAGE = dict(specification.pages())["specification/evaluation.md"]


@pytest.mark.parametrize("name", MEASURES)
def test_the_reference_has_a_row_for_each_measure(name: str) -> None:
    assert PAGE.count(f"| `{name}` |") == 1
    assert MEASURES[name].meaning


def test_no_two_measures_share_a_name() -> None:
    assert len(MEASURES) == sum(len(group.measures()) for group in GROUPS)
