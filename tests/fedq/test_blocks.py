"""Blocks in Python: where they are imported from, their default kinds, and their types."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fastapi import FastAPI
from pydantic import BaseModel

import fedq
from fedcore.families import models_of
from fedcore.spec import ExperimentSpec
from fedq import blocks
from fedq.scaffolding import create_experiment
from tests.api.conftest import app, settings
from tests.support.asgi import calling

__all__ = ["app", "settings"]


def _reachable(model: type[BaseModel], known: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    if model in known:
        return
    known.add(model)
    yield model
    for field in model.model_fields.values():
        for inner in models_of(field, registered=True):
            yield from _reachable(inner, known)


def test_every_block_is_imported_from_fedq_and_knows_its_kind() -> None:
    found = {model for model in _reachable(ExperimentSpec, set()) if model.__module__.startswith("fedcore")}
    assert {model.__name__ for model in found} == {*dir(blocks), "ExperimentSpec"}
    assert all(getattr(fedq, model.__name__) is model for model in found)
    kinds = [model.model_fields["kind"] for model in found if "kind" in model.model_fields]
    assert not [field for field in kinds if field.is_required()]
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fedq.Nothing


def test_the_stub_of_blocks_is_up_to_date(tmp_path: Path) -> None:
    """`python -m fedq.blocks` writes it; the module itself is hidden from type checkers by the stub."""
    vars(blocks)["write_stub"](tmp_path / "blocks.pyi")
    committed = Path(fedq.__file__).with_name("blocks.pyi").read_text()
    assert (tmp_path / "blocks.pyi").read_text() == committed


def test_blocks_are_imported_at_once() -> None:
    names: dict[str, object] = {}
    exec("from fedq.blocks import *", names)
    assert names.keys() - {"__builtins__"} == {*dir(blocks)}


def test_a_specification_of_objects_says_their_kinds() -> None:
    # mypy, which checks tests too, accepts it without the other fields.
    made = ExperimentSpec(
        name="typed",
        problem=blocks.Problem(
            dataset=blocks.Digits(), partition=blocks.IidPartition(clients=3), model=blocks.Logistic()
        ),
        algorithm=blocks.FedAvg(),
        local=blocks.LocalSolver(lr=0.1, epochs=1),
        rounds=3,
    )
    document = made.model_dump(mode="json")
    assert document["problem"]["dataset"]["kind"] == "digits"
    assert ExperimentSpec.model_validate(document) == made


def test_documents_still_name_their_kinds() -> None:
    required = ExperimentSpec.model_json_schema()["$defs"]["Digits"]["required"]
    assert required == ["kind"]
    with pytest.raises(ValueError, match="kind"):
        blocks.Problem.model_validate({"dataset": {}})


def test_a_new_experiment_is_valid_and_names_the_schema(tmp_path: Path, app: FastAPI) -> None:
    path = create_experiment("first try", tmp_path, "http://fedq.example/v1/schemas/experiment.json")
    first, _, rest = path.read_text().partition("\n")
    assert first == "# yaml-language-server: $schema=http://fedq.example/v1/schemas/experiment.json"
    document = yaml.safe_load(rest)
    assert ExperimentSpec.model_validate(document).name == "first try"
    with calling(app) as anyone:
        answer = anyone.get("/v1/schemas/experiment.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/schema+json"
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(answer.json()).validate(document)
