"""Examples derived from JSON Schemas."""

import jsonschema
import pytest

from api.openapi.examples import add_examples, example_of
from tests.builders.specifications import Document


def test_an_example_shows_all_of_an_answer_and_of_a_request_what_it_needs() -> None:
    fields = {"name": {"type": "string", "examples": ["ada"]}, "note": {"type": "string", "default": ""}}
    answer: Document = {"type": "object", "properties": fields, "required": ["name"]}
    request: Document = {**answer, "additionalProperties": False}
    schemas: Document = {
        "Answer": answer,
        "Many": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}},
    }
    assert example_of(schemas["Many"], schemas) == [{"name": "ada", "note": ""}]
    assert example_of(request, schemas) == {"name": "ada"}
    add_examples(schemas)
    assert schemas["Answer"]["examples"] == [{"name": "ada", "note": ""}]


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "number"}, 1),
        ({"type": "boolean"}, False),
        ({"type": "string", "enum": ["queued", "running"]}, "queued"),
        ({"const": "ok"}, "ok"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"const": "a"}},
            {"a": 1},
        ),
        ({"type": "object", "additionalProperties": True}, {}),
    ],
)
def test_an_example_is_of_the_type_of_its_schema(schema: Document, example: object) -> None:
    assert example_of(schema, {}) == example
    jsonschema.validate(example, schema)
