"""The OpenAPI document leaves nothing without words and examples."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest

from api.openapi.examples import UNKNOWN_TEXT
from fedcore.block import kind_of
from fedcore.spec import ExperimentSpec
from fedcore.spec.kinds import list_kinds
from tests.builders.runs import carry_out
from tests.builders.specifications import TINY, Document
from tests.support.asgi import built
from tests.support.described import described
from tests.support.service import Service


@pytest.fixture(scope="module")
def document() -> Document:
    return described()


def _operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"{method} {path}", operation


def _fields(document: Document) -> Iterator[tuple[str, Document]]:
    for name, schema in document["components"]["schemas"].items():
        for field, about in schema.get("properties", {}).items():
            yield f"{name}.{field}", about


def test_the_document_is_complete_also_after_a_route_was_added() -> None:
    app = built()
    first = app.openapi()
    app.add_api_route("/added", lambda: None, include_in_schema=False)
    assert app.openapi() == first


def test_every_field_has_a_description(document: Document) -> None:
    assert [name for name, field in _fields(document) if not field.get("description")] == []


def test_every_field_has_an_example_or_may_be_left_out(document: Document) -> None:
    assert [
        name for name, field in _fields(document) if not {"examples", "default", "const"} & set(field)
    ] == []


def test_every_schema_has_a_description_and_objects_have_an_example(document: Document) -> None:
    schemas = document["components"]["schemas"].items()
    assert [name for name, schema in schemas if not schema.get("description")] == []
    assert [
        name for name, schema in schemas if schema.get("type") == "object" and not schema.get("examples")
    ] == []


def test_every_example_is_valid(document: Document) -> None:
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", []):
            jsonschema.validate(
                example, {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
            )


def test_every_operation_has_a_summary_a_description_and_a_name_of_its_own(document: Document) -> None:
    assert [
        name
        for name, operation in _operations(document)
        if not (operation.get("summary") and operation.get("description"))
    ] == []
    names = [operation["operationId"] for _, operation in _operations(document)]
    assert len(names) == len(set(names))


def test_operations_are_named_by_their_functions(document: Document) -> None:
    names = [operation["operationId"] for _, operation in _operations(document)]
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name)] == []
    assert document["servers"][0]["url"] == "/"


def test_no_default_is_an_object(document: Document) -> None:
    """Generators of clients cannot choose the class of one."""
    assert [name for name, field in _fields(document) if isinstance(field.get("default"), dict)] == []
    optional = document["components"]["schemas"]["ExperimentSpec"]
    assert (
        'Default: `{"weighting": null, "kind": "full"}`.'
        in (optional["properties"]["participation"]["description"])
    )
    assert "participation" not in optional["required"]


def test_every_parameter_has_a_description(document: Document) -> None:
    parameters = [
        (name, parameter)
        for name, operation in _operations(document)
        for parameter in operation.get("parameters", [])
    ]
    assert [
        (name, parameter["name"]) for name, parameter in parameters if not parameter.get("description")
    ] == []


def test_every_json_body_that_is_no_error_has_an_example(document: Document) -> None:
    assert [name for name, body in _json_bodies(document) if not body.get("examples")] == []


def test_every_error_is_a_problem(document: Document) -> None:
    for name, operation in _operations(document):
        errors = {status: response for status, response in operation["responses"].items() if status >= "400"}
        assert {"500", "503"} <= set(errors), name
        for status, response in errors.items():
            if (name, status) != ("get /readyz", "503"):
                assert list(response["content"]) == ["application/problem+json"], (name, status)


def test_the_example_of_a_specification_is_valid(document: Document) -> None:
    schemas = document["components"]["schemas"]
    for example in (
        *schemas["ExperimentSpec"]["examples"],
        schemas["Experiment"]["examples"][0]["specification"],
    ):
        assert ExperimentSpec.model_validate(example).arms()


def test_no_example_is_a_text_that_says_nothing(document: Document) -> None:
    """A new field of text says its example: `Field(examples=[...])`, or a type of `fedq.schemas.base`."""
    assert [name for name, field in _fields(document) if f"'{UNKNOWN_TEXT}'" in str(field["examples"])] == []


@pytest.mark.parametrize("path", list_kinds())
def test_the_example_of_every_kind_is_in_the_document(path: str, document: Document) -> None:
    for member in list_kinds()[path]:
        (example,) = document["components"]["schemas"][member.__name__]["examples"]
        assert example["kind"] == kind_of(member)
        assert member.model_validate(example) == member.model_validate(
            {"kind": kind_of(member), **member.example}
        )


def _json_bodies(document: Document) -> Iterator[tuple[str, Document]]:
    for name, operation in _operations(document):
        for message in (operation.get("requestBody", {}), *operation["responses"].values()):
            for media_type, body in message.get("content", {}).items():
                if media_type == "application/json":
                    yield f"{name} {media_type}", body


# A client that openapi-python-client makes from the document submits an experiment and reads it.

PACKAGE = "generated_fedq"


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the generated package, which can be imported."""
    document, config = tmp_path / "openapi.json", tmp_path / "config.yaml"
    document.write_text(json.dumps(described()))
    # Bodies are sent as JSON, and formatting takes longer than the rest.
    config.write_text("post_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta=none"]
    given = [f"--path={document}", f"--output-path={tmp_path / PACKAGE}", f"--config={config}"]
    done = subprocess.run([*command, *given], check=True, capture_output=True, text=True)
    told = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert {line for line in told if "Unsupported" in line or "Unable" in line or "cannot" in line} <= {
        "Unsupported content type application/yaml"
    }
    monkeypatch.syspath_prepend(tmp_path)
    return PACKAGE


@pytest.mark.slow
def test_a_generated_client_runs_an_experiment(generated: str, service: Service) -> None:
    def module(name: str) -> ModuleType:
        return importlib.import_module(f"{generated}.{name}")

    specification = module("models.experiment_spec").ExperimentSpec.from_dict(TINY)
    connecting = module("client").AuthenticatedClient(
        service.url, service.key, raise_on_unexpected_status=True, timeout=60.0
    )
    with connecting as client:
        made = module("api.experiments.submit_experiment").sync(client=client, body=specification)
        assert made.name == TINY["name"]
        carry_out(service.database, service.storage, 1)
        ended = module("api.experiments.read_experiment").sync(made.id, client=client)
        assert ended.status.value == "succeeded"
        (run,) = module("api.runs.read_runs").sync(made.id, client=client).items
        rows = module("api.runs.read_run_metrics").sync(run.id, client=client)
        assert [row.round_ for row in rows.items] == [1, 2, 3]
        problem = module("api.experiments.read_experiment").sync("exp_z", client=client)
        assert (problem.status, problem.title) == (404, "Not found")
