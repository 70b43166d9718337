"""docs/search.md: its examples are accepted, and come to what it says."""

import re
from pathlib import Path

import yaml

from fedcore import ExperimentSpec
from fedq.planning.estimates import plan
from fedq.results.selection import explain_tuning
from tests.builders.specifications import merged

PAGE = (Path(__file__).parents[2] / "docs/search.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_examples_of_searches_are_accepted_and_come_to_the_rounds_stated() -> None:
    validated, search, stopping, study, several, pruned = map(yaml.safe_load, blocks("yaml"))
    assert explain_tuning(ExperimentSpec.model_validate(validated).model_dump(mode="json")) is None
    spec = ExperimentSpec.model_validate(search)
    assert explain_tuning(spec.model_dump(mode="json")) is not None
    ExperimentSpec.model_validate(search | stopping)
    assert plan(ExperimentSpec.model_validate(study)).runs == 120
    ExperimentSpec.model_validate(study | several)
    assert plan(ExperimentSpec.model_validate(merged(study, {"search": pruned}))).search is not None
    planned = plan(spec).search
    assert planned is not None
    assert [(stretch.until, stretch.arms) for stretch in planned.stretches] == [(10, 9), (30, 3), (90, 1)]
    assert (
        f"{planned.rounds // len(spec.seeds)} rounds per seed instead of {spec.arm_count * spec.rounds}"
        in " ".join(PAGE.split())
    )
