"""Forms of a submission, and files that cannot be read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedq.client import UnreadableSpecificationError
from fedq.client.bodies import body_of, parse
from tests.builders.specifications import QUADRATIC, Document, specification


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".YAML"])
def test_a_file_is_read_by_json_and_yaml_alike(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"spec{suffix}"
    file.write_text(json.dumps(QUADRATIC))
    assert json.loads(body_of(str(file), {"rounds": 9})) == {**QUADRATIC, "rounds": 9}


def test_other_text_is_the_name_of_a_preset() -> None:
    assert json.loads(body_of("demo", {"rounds": 3})) == {"preset": "demo", "overrides": {"rounds": 3}}


def test_an_interval_of_evaluations_that_nobody_gave_is_left_to_the_service() -> None:
    def sent(document: Document) -> Document:
        return dict(json.loads(body_of(specification(document), {}))["evaluation"])

    plain = {name: value for name, value in QUADRATIC.items() if name != "evaluation"}
    assert "every" not in sent(plain)
    assert sent(plain | {"evaluation": {"every": 1}})["every"] == 1


def test_arrays_become_lists_and_infinities_reach_the_service() -> None:
    body = body_of({"x0": np.array([1.0, 2.0]), "steps": np.int64(3), "lr": float("inf")}, {})
    assert body == b'{"x0":[1.0,2.0],"steps":3,"lr":Infinity}'


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "not valid JSON or YAML"), ("[1, 2]", "must contain a mapping, not list"), ("", "NoneType")],
)
def test_files_that_are_no_document_are_named(text: str, told: str) -> None:
    with pytest.raises(UnreadableSpecificationError, match=rf"spec\.yaml.*{told}"):
        parse(text, "spec.yaml")


@pytest.mark.parametrize("value", [object(), {1: object()}])
def test_values_that_json_cannot_carry_are_refused(value: Any) -> None:
    with pytest.raises(UnreadableSpecificationError, match="not serialisable as JSON"):
        body_of({"name": value}, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSpecificationError, match=r"missing\.yaml cannot be read"):
        body_of(tmp_path / "missing.yaml", {})
