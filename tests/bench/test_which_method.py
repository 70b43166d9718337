"""The comparison of methods: its arms are valid, and its page has all of them."""

from pathlib import Path

import pytest

from bench.which_method import CONDITIONS, SPEC
from fedcore import ExperimentSpec
from fedcore.presets import override

PAGE = Path(__file__).parents[2] / "docs" / "which-method.md"


@pytest.mark.parametrize("name", CONDITIONS)
def test_every_arm_of_a_condition_is_valid_and_on_the_page(name: str) -> None:
    condition = CONDITIONS[name]
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"### {condition.title}\n")
    table = section.partition("###")[0]
    assert table.count("\n| ") == len(condition.arms) + 3  # the head, its rule, and FedAvg
    for arm, candidates in condition.arms.items():
        assert f"\n| {arm}" in table
        for changes in candidates:
            ExperimentSpec.model_validate(override(override(SPEC, condition.changes), changes))
