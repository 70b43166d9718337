"""Examples of all schemas of the OpenAPI document, derived from them.

A block is shown as the `example` of its class, a specification as the preset `demo`, and any other
field as the first of its `examples`, its default, or a value of its type.
"""

from typing import Any

from fedcore import presets
from fedcore.block import kind_of
from fedcore.packages import is_of_package
from fedcore.spec.kinds import list_kinds

Schema = dict[str, Any]

MOMENT = "2026-11-21T09:30:00Z"
UNKNOWN_TEXT = "string"
"""A text whose field has no example."""


def add_examples(schemas: dict[str, Schema]) -> None:
    """Add an example to each schema and to the fields in it."""
    specification = presets.load("demo").spec
    for name, example in (_block_examples() | {"ExperimentSpec": specification}).items():
        if name in schemas:
            schemas[name]["examples"] = [example]
    for schema in schemas.values():
        if "specification" in schema.get("properties", {}):
            schema["properties"]["specification"]["examples"] = [specification]
    for schema in schemas.values():
        example = example_of(schema, schemas)
        schema["examples"] = [example]
        for name, field in schema.get("properties", {}).items():
            field["examples"] = [example[name] if name in example else example_of(field, schemas)]


def example_of(schema: Schema, schemas: dict[str, Schema]) -> Any:
    """Return a valid value of a JSON Schema with references to `schemas`."""
    match schema:
        case {"examples": [first, *_]} | {"const": first} | {"enum": [first, *_]}:
            return first
        case {"default": value} if value is not None:
            return value
        case {"$ref": reference}:
            return example_of(schemas[reference.rpartition("/")[2]], schemas)
        case {"anyOf": [chosen, *others]} | {"oneOf": [chosen, *others]}:
            example = example_of(chosen, schemas)
            return None if example == UNKNOWN_TEXT and {"type": "null"} in others else example
    return _example_of_type(schema, schemas)


def _example_of_type(schema: Schema, schemas: dict[str, Schema]) -> Any:
    example: Any = None
    match schema.get("type"):
        case "object" if "properties" in schema:
            example = _fields(schema, schemas)
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            key = example_of(schema.get("propertyNames", {"type": "string"}), schemas)
            example = {key: example_of(schema["additionalProperties"], schemas)}
        case "object":
            example = {}
        case "array":
            example = [example_of(schema.get("items", {}), schemas)]
        case "string":
            example = MOMENT if schema.get("format") == "date-time" else UNKNOWN_TEXT
        case "integer" | "number":
            example = max(1, schema.get("minimum", 1))
        case "boolean":
            example = False
    return example


def _fields(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    """Return all fields of an answer; for a request, the fields that are required or have
    `examples`.
    """
    is_request = schema.get("additionalProperties") is False
    required = schema.get("required", ())
    return {
        name: example_of(field, schemas)
        for name, field in schema["properties"].items()
        if not is_request or name in required or "examples" in field
    }


def _block_examples() -> dict[str, Any]:
    """Return the examples of all blocks with a kind, by name of their class."""
    return {
        member.__name__: member.model_validate({"kind": kind_of(member), **member.example}).model_dump(
            mode="json", exclude_none=True
        )
        for members in list_kinds().values()
        for member in members
        if member.example or not is_of_package(member)
    }
