"""The comparison of methods: its arms are valid, and its page has all of them."""

from pathlib import Path

import pytest

from bench.which_method import CONDITIONS, specification, tuning
from fedcore.spec.tuning import list_studies

PAGE = Path(__file__).parents[2] / "docs" / "which-method.md"


@pytest.mark.parametrize("name", CONDITIONS)
def test_every_arm_of_a_condition_is_valid_and_on_the_page(name: str) -> None:
    condition = CONDITIONS[name]
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"### {condition.title}\n")
    table = section.partition("###")[0]
    assert table.count("\n| ") == len(condition.arms) + 3  # the head, its rule, and FedAvg
    assert all(f"\n| {arm}" in table for arm in condition.arms)
    spec = specification(condition, range(10))
    studies = list_studies(spec, tuning(condition, 10))
    assert [one.arm.name for one in studies] == ["FedAvg", *condition.arms]
    assert all(one.study is not None for one in studies)
